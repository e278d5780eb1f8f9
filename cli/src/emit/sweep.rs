//! `emit --sweep`: many configurations of one problem, one per line.

use crate::measure::{Assembled, Bench, Counted, assemble, entries, predicted};
use crate::progress::Progress;
use comfy_table::{Attribute, Cell, CellAlignment};
use rayon::prelude::*;
use serde_json::{Value, json};
use silumin::codegen::arch::TensorCore;
use silumin::codegen::config::{Config, CtaGroup, Knob};
use silumin::codegen::plan::Plan;
use silumin::codegen::spec::Spec;
use silumin::verify::check::CheckReport;
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Shape};
use std::error::Error;

/// Knobs and values that are swept without `--sweep-knob`. M in a tile stands for the rows of the CTA group.
const USUAL: &[(&str, &str)] = &[
    ("strategy", "two_pass;second_fused;sequential;interleaved"),
    ("schedule", "one_tile;persistent;dynamic;stream_k;split_k(2)"),
    ("cta_group", "1;2"),
    ("tile", "[M, 64, 256];[M, 128, 256];[M, 192, 128]"),
];

/// The same, for chips whose warpgroups multiply and hold the accumulators.
const USUAL_OF_WARPGROUPS: &[(&str, &str)] = &[
    ("strategy", "two_pass;second_fused;sequential;interleaved"),
    ("schedule", "one_tile;persistent;stream_k;split_k(2)"),
    ("consumers", "cooperative;ping_pong"),
    ("tile", "[M, 64, 64];[M, 128, 64];[64, 128, 64];[256, 96, 64]"),
];

/// The same, for chips whose warps do.
const USUAL_OF_WARPS: &[(&str, &str)] = &[
    ("strategy", "two_pass;second_fused;sequential;interleaved"),
    ("schedule", "one_tile;persistent;stream_k;split_k(2)"),
    ("tile", "[M, 32, 128];[M, 64, 128];[64, 64, 128];[64, 128, 128]"),
];

/// Multiply-adds that all verifications may take together, unless `--verify-k` is given.
const BUDGET: f64 = 300e9;

/// What to sweep.
pub struct Sweep<'a> {
    /// The configuration that all others start from.
    pub spec: &'a Spec,
    /// The chip.
    pub arch: Arch,
    /// The problem's sizes.
    pub shape: Shape,
    /// Seed of the operands.
    pub seed: u64,
    /// The gate's scalars.
    pub scalars: &'a [(String, f32)],
    /// Host threads of the emulator; 0 is one per core.
    pub threads: usize,
    /// Knobs fixed by flags.
    pub fixed: Vec<&'static str>,
    /// `NAME=V1;V2` of each `--sweep-knob`.
    pub chosen: Vec<String>,
    /// The chip for predicted times; `off` for none.
    pub chip: String,
    /// K of the verification. `None`: as large as the budget allows; 0: no verification.
    pub verify_k: Option<u32>,
}

/// One configuration.
struct Row {
    values: Vec<String>,
    outcome: Result<Legal, String>,
}

/// A legal one.
struct Legal {
    plan: Plan,
    entries: usize,
    launches: usize,
    assembled: Option<Result<Assembled, String>>,
    /// Predicted time of all launches, in microseconds.
    predicted: Result<f64, String>,
    verified: Option<Result<Verified, String>>,
    /// Why it was not verified, if others were.
    skipped: Option<String>,
}

/// Result of a verification on the emulator.
struct Verified {
    check: CheckReport,
    counted: Option<Counted>,
    /// Whether the emulator's counts equal the plan's, as far as the plan determines them.
    as_modelled: bool,
}

/// Knobs, with the values that each takes.
type Axes = Vec<(&'static str, Vec<String>)>;

/// All lines of a sweep.
pub struct Table {
    axes: Axes,
    rows: Vec<Row>,
    /// The problem that was verified.
    verified: Option<Shape>,
    assembled: bool,
}

/// Runs and prints the sweep; `false` if a legal configuration gives a wrong result.
pub fn run(sweep: &Sweep<'_>, json: bool) -> Result<bool, Box<dyn Error>> {
    let table = sweep.measure()?;
    if json {
        crate::print::document(&table.document(sweep))?;
    } else {
        table.print(sweep);
    }
    Ok(table.is_right())
}

impl Sweep<'_> {
    /// Tries everything.
    pub fn measure(&self) -> Result<Table, String> {
        let axes = self.axes()?;
        let mut rows = self.rows(&axes)?;
        let ptxas = Ptxas::find().ok();
        if let Some(ptxas) = &ptxas {
            let progress = Progress::new(rows.len() as u64, "kernels assembled");
            rows.par_iter_mut().for_each(|row| {
                self.assemble(&axes, row, ptxas);
                progress.step();
            });
        }
        let legal = rows.iter().filter(|row| row.outcome.is_ok()).count();
        let verified = self.verified_shape(legal);
        if let Some(shape) = verified {
            let bench = Bench::new(self.spec, self.arch, shape, self.seed, self.scalars, self.threads)?;
            let progress = Progress::new(rows.len() as u64, "kernels verified");
            for row in &mut rows {
                self.verify(&axes, row, &bench);
                progress.step();
            }
        }
        Ok(Table { axes, rows, verified, assembled: ptxas.is_some() })
    }

    /// The knobs to sweep: those chosen, or the usual ones that no flag fixes.
    fn axes(&self) -> Result<Axes, String> {
        let texts: Vec<(String, String)> = if self.chosen.is_empty() {
            let usual = match self.arch.tensor_core() {
                TensorCore::Tcgen05 => USUAL,
                TensorCore::Wgmma => USUAL_OF_WARPGROUPS,
                TensorCore::Mma => USUAL_OF_WARPS,
            };
            let free = usual.iter().filter(|(knob, _)| !self.fixed.contains(knob));
            free.map(|(knob, values)| ((*knob).to_owned(), (*values).to_owned())).collect()
        } else {
            let pair = |text: &String| {
                text.split_once('=').map(|(knob, values)| (knob.trim().replace('-', "_"), values.to_owned()))
            };
            let wrong =
                |text: &String| format!("--sweep-knob: `{text}` is not NAME=V1;V2, such as stages=2;3;4");
            self.chosen.iter().map(|text| pair(text).ok_or_else(|| wrong(text))).collect::<Result<_, _>>()?
        };
        let mut axes: Axes = Vec::new();
        for (name, values) in texts {
            let values: Vec<String> = values.split(';').map(|value| value.trim().to_owned()).collect();
            for value in &values {
                Config::default()
                    .set(&name, &in_rows(value, 128))
                    .map_err(|e| format!("--sweep-knob: {e}"))?;
            }
            // A name that was just set is known.
            axes.extend(Knob::named(&name).map(|knob| (knob.name, values)));
        }
        Ok(axes)
    }

    /// The configuration with one row's values.
    fn spec_of(&self, axes: &Axes, values: &[String]) -> Result<Spec, String> {
        let mut spec = self.spec.clone();
        let mut set = |tiles: bool, rows: u32| {
            let wanted = axes.iter().zip(values).filter(|((knob, _), _)| (*knob == "tile") == tiles);
            for ((knob, _), value) in wanted {
                spec.config.set(knob, &in_rows(value, rows)).map_err(|e| e.to_string())?;
            }
            Ok::<u32, String>(128 * spec.config.cta_group.unwrap_or_else(|| CtaGroup::One).ctas())
        };
        // A tile has as many rows as its CTA group.
        let rows = set(false, 0)?;
        set(true, rows)?;
        Ok(spec)
    }

    fn rows(&self, axes: &Axes) -> Result<Vec<Row>, String> {
        let mut all: Vec<Vec<String>> = vec![Vec::new()];
        for (_, values) in axes {
            let longer = |head: &Vec<String>| {
                let head = head.clone();
                values.iter().map(move |value| head.iter().chain([value]).cloned().collect())
            };
            all = all.iter().flat_map(longer).collect();
        }
        let progress = Progress::new(all.len() as u64, "kernels predicted");
        let row = |values| {
            let row = self.row(axes, values);
            progress.step();
            row
        };
        all.into_par_iter().map(row).collect()
    }

    fn row(&self, axes: &Axes, values: Vec<String>) -> Result<Row, String> {
        let spec = self.spec_of(axes, &values)?;
        let outcome = match spec.plan(self.shape, self.arch) {
            Ok(plan) => {
                let kernel = spec.kernel(self.shape, self.arch).map_err(|e| e.to_string())?;
                Ok(Legal {
                    plan,
                    entries: entries(&kernel),
                    launches: kernel.launches.len(),
                    predicted: match self.chip.as_str() {
                        "off" => Err("--time off".to_owned()),
                        chip => predicted(&kernel, chip).map(|p| p.time() / 1e3),
                    },
                    assembled: None,
                    verified: None,
                    skipped: None,
                })
            }
            Err(errors) => Err(errors.first().map(ToString::to_string).unwrap_or_default()),
        };
        Ok(Row { values, outcome })
    }

    fn assemble(&self, axes: &Axes, row: &mut Row, ptxas: &Ptxas) {
        let Ok(legal) = &mut row.outcome else { return };
        let kernel = self
            .spec_of(axes, &row.values)
            .and_then(|spec| spec.kernel(self.shape, self.arch).map_err(|e| e.to_string()));
        legal.assembled = Some(kernel.and_then(|kernel| assemble(ptxas, &kernel)));
    }

    /// The problem to verify: the whole one, or one of less K if there are many configurations.
    fn verified_shape(&self, configurations: usize) -> Option<Shape> {
        let Shape { m, n, k, .. } = self.shape;
        let affordable = BUDGET / configurations.max(1) as f64 / (2.0 * f64::from(m.max(128)) * f64::from(n));
        // Whole K tiles of any length, and at least four of the usual ones.
        let cap = self.verify_k.unwrap_or(((affordable as u32) / 1024 * 1024).max(1024));
        (cap > 0).then_some(Shape { k: k.min(cap), ..self.shape })
    }

    fn verify(&self, axes: &Axes, row: &mut Row, bench: &Bench) {
        let Ok(legal) = &mut row.outcome else { return };
        let spec = self.spec_of(axes, &row.values);
        let plan = spec.as_ref().ok().map(|spec| spec.plan(bench.shape(), self.arch));
        if let Some(Err(errors)) = &plan {
            // Legal for all of K, but not for the part that is verified.
            legal.skipped = errors.first().map(|error| format!("K = {}: {error}", bench.shape().k));
            return;
        }
        legal.verified = match (spec, plan) {
            (Ok(spec), Some(Ok(plan))) => Some(bench.run(&spec).map(|(check, report)| {
                let counted = Counted::of(&plan, &report);
                // Plans know no gate, and so not the vectors that one reads.
                let modelled = spec.gate.expr.vectors().is_empty();
                let as_modelled = !modelled || counted.is_none_or(|counted| counted.agrees(&plan));
                Verified { check, counted, as_modelled }
            })),
            _ => None,
        };
    }
}

impl Table {
    /// Whether every legal configuration is right.
    pub fn is_right(&self) -> bool {
        self.rows.iter().all(Row::is_right)
    }

    fn print(&self, sweep: &Sweep<'_>) {
        let Table { axes, rows, verified, assembled } = self;
        println!("{} on {}, gate {}", sweep.spec.problem(sweep.shape), sweep.arch, sweep.spec.gate);
        let mut head: Vec<String> = axes.iter().map(|(knob, _)| (*knob).to_owned()).collect();
        head.extend(COLUMNS.map(str::to_owned));
        let legal = rows.iter().filter_map(|row| row.outcome.as_ref().ok().map(|legal| (row, legal)));
        let whole = *verified == Some(sweep.shape);
        let mut legal: Vec<_> = legal.collect();
        // The fastest first; those without a time stay in the order of the sweep, behind all others.
        let us = |legal: &Legal| legal.predicted.as_ref().copied().unwrap_or(f64::INFINITY);
        legal.sort_by(|(_, a), (_, b)| us(a).total_cmp(&us(b)));
        let best = legal.iter().position(|(row, legal)| row.is_right() && us(legal).is_finite());
        head.insert(0, String::new());
        let lines: Vec<Vec<String>> = (legal.iter().enumerate())
            .map(|(index, (row, legal))| {
                let mark = if best == Some(index) { "*" } else { "" }.to_owned();
                [mark].into_iter().chain(row.values.iter().cloned()).chain(legal.cells(whole)).collect()
            })
            .collect();
        table(&head, &lines, best);
        let illegal: Vec<&Row> = rows.iter().filter(|row| row.outcome.is_err()).collect();
        if !illegal.is_empty() {
            println!("\nillegal: {} of {}", illegal.len(), rows.len());
        }
        for row in illegal {
            let reason = row.outcome.as_ref().err().map_or("", String::as_str);
            println!("  {}: {}", row.values.join(" "), shortened(reason));
        }
        println!();
        match verified {
            None => println!("Not run; bytes and MMAs are modelled."),
            Some(shape) if *shape == sweep.shape => println!(
                "Bytes and MMAs: counted by the emulator (`!`: not what the plan says). Every element compared with an f64 reference."
            ),
            Some(shape) => println!(
                "Right or not was judged at K = {}, every element, so that all of it takes a minute; bytes and MMAs are modelled for K = {}, by a\nmodel that was compared with the emulator's count at K = {} (`!`: it differs there). --verify-k {} runs everything.",
                shape.k, sweep.shape.k, shape.k, sweep.shape.k
            ),
        }
        if !*assembled {
            println!("ptxas was not found: no registers and spills.");
        }
        match sweep.chip.as_str() {
            "off" => return,
            chip => println!(
                "predicted us: all launches on chip {chip}, not measured; the fastest first, `*` is the fastest that is not wrong."
            ),
        }
        for (row, legal) in rows.iter().filter_map(|row| row.outcome.as_ref().ok().map(|legal| (row, legal)))
        {
            if let Err(reason) = &legal.predicted {
                println!("  no time for {}: {}", row.values.join(" "), shortened(reason));
            }
        }
    }

    /// The table as a JSON document.
    pub fn document(&self, sweep: &Sweep<'_>) -> Value {
        let Table { axes, rows, verified, .. } = self;
        let rows: Vec<Value> =
            rows.iter().map(|row| row.json(axes, *verified == Some(sweep.shape))).collect();
        json!({
            "shape": [sweep.shape.m, sweep.shape.n, sweep.shape.k],
            "arch": sweep.arch.to_string(),
            "gate": sweep.spec.gate.to_string(),
            "verified_k": verified.map(|shape| shape.k),
            "right": self.is_right(),
            "configurations": rows,
        })
    }
}

const COLUMNS: [&str; 15] = [
    "kernels",
    "launches",
    "waves",
    "clusters",
    "stages",
    "load MB",
    "store MB",
    "MMAs",
    "SMEM",
    "TMEM",
    "regs",
    "spills",
    "predicted us",
    "verdict",
    "rel. error",
];

impl Row {
    /// Whether the configuration is illegal, was not run, or is right.
    fn is_right(&self) -> bool {
        self.outcome.as_ref().map_or(true, |legal| match &legal.verified {
            Some(Ok(verified)) => verified.check.pass && verified.as_modelled,
            Some(Err(_)) => false,
            None => true,
        })
    }

    fn json(&self, axes: &Axes, whole: bool) -> Value {
        let knobs: serde_json::Map<String, Value> = axes
            .iter()
            .zip(&self.values)
            .map(|((knob, _), value)| ((*knob).to_owned(), json!(value)))
            .collect();
        let legal = match &self.outcome {
            Err(reason) => return json!({ "knobs": knobs, "legal": false, "reason": reason }),
            Ok(legal) => legal,
        };
        let Legal { plan, entries, launches, .. } = legal;
        let bytes = legal.bytes(whole);
        let assembled = match &legal.assembled {
            Some(Ok(assembled)) => json!({ "registers": assembled.registers, "spilled": assembled.spills }),
            Some(Err(error)) => json!({ "error": error }),
            None => Value::Null,
        };
        let verdict = match &legal.verified {
            Some(Ok(verified)) => json!({
                "pass": verified.check.pass,
                "max_abs": verified.check.max_abs,
                "max_rel": verified.check.max_rel,
                "rel_frobenius": verified.check.rel_frobenius,
                "count_is_model": verified.as_modelled,
            }),
            Some(Err(error)) => json!({ "error": error }),
            None => legal.skipped.as_ref().map_or(Value::Null, |why| json!({ "skipped": why })),
        };
        json!({
            "knobs": knobs, "legal": true, "settled": plan.config, "kernels": entries, "launches": launches,
            "waves": plan.waves(), "busy": plan.balance().efficiency, "clusters": plan.work.clusters,
            "stages": plan.stages, "bytes": if legal.is_counted(whole) { "counted" } else { "modelled" },
            "loaded_bytes": bytes.read, "stored_bytes": bytes.written, "mmas": bytes.mmas,
            "smem_bytes": plan.smem.total, "tmem_columns": plan.tmem_columns(), "ptxas": assembled,
            "floor_us": plan.schedule_floor_seconds() * 1e6, "predicted_us": legal.predicted.as_ref().ok(),
            "not_predicted": legal.predicted.as_ref().err(), "verdict": verdict,
        })
    }
}

impl Legal {
    fn is_counted(&self, whole: bool) -> bool {
        whole && matches!(&self.verified, Some(Ok(Verified { counted: Some(_), .. })))
    }

    /// The emulator's counts if it ran the whole problem, otherwise the plan's.
    fn bytes(&self, whole: bool) -> Counted {
        match &self.verified {
            Some(Ok(Verified { counted: Some(counted), .. })) if whole => *counted,
            _ => Counted::modelled(&self.plan),
        }
    }

    fn why_not(&self) -> String {
        self.skipped.as_ref().map_or_else(String::new, |why| format!(": {}", shortened(why)))
    }

    fn cells(&self, whole: bool) -> Vec<String> {
        let plan = &self.plan;
        let bytes = self.bytes(whole);
        let (registers, spills) = match &self.assembled {
            Some(Ok(assembled)) => (assembled.registers.to_string(), assembled.spills.to_string()),
            Some(Err(_)) => ("refused".to_owned(), "-".to_owned()),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let (verdict, error, odd) = match &self.verified {
            Some(Ok(v)) => (
                if v.check.pass { "PASS".to_owned() } else { "FAIL".to_owned() },
                format!("{:.2e}", v.check.rel_frobenius),
                if v.as_modelled { "" } else { "!" },
            ),
            Some(Err(error)) => (format!("FAIL: {}", shortened(error)), "-".to_owned(), ""),
            None => (format!("not run{}", self.why_not()), "-".to_owned(), ""),
        };
        vec![
            self.entries.to_string(),
            self.launches.to_string(),
            format!("{:.2}", plan.waves()),
            plan.work.clusters.to_string(),
            plan.stages.to_string(),
            format!("{:.2}{odd}", bytes.read as f64 / 1e6),
            format!("{:.2}", bytes.written as f64 / 1e6),
            bytes.mmas.to_string(),
            plan.smem.total.to_string(),
            plan.tmem_columns().to_string(),
            registers,
            spills,
            self.predicted.as_ref().map_or_else(|_| "-".to_owned(), |us| format!("{us:.2}")),
            verdict,
            error,
        ]
    }
}

/// `[M, 64, 256]` with the number of rows for M.
fn in_rows(value: &str, rows: u32) -> String {
    value.replacen("[M,", &format!("[{rows},"), 1)
}

/// The first line, shortened to fit a table.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 110;
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line.to_owned(),
    }
}

/// Prints a table, numbers to the right; the line of `best` stands out.
fn table(head: &[String], lines: &[Vec<String>], best: Option<usize>) {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(head);
    for (index, line) in lines.iter().enumerate() {
        // Attributes are left out where nobody looks at a terminal.
        table.add_row(line.iter().map(|cell| match best == Some(index) {
            true => Cell::new(cell).add_attribute(Attribute::Bold),
            false => Cell::new(cell),
        }));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        let number = lines.iter().any(|line| line[index].starts_with(|c: char| c.is_ascii_digit()));
        column.set_cell_alignment(if number { CellAlignment::Right } else { CellAlignment::Left });
    }
    table.lines().for_each(|line| println!("{}", line.trim_end()));
}
