//! `emit --sass`: machine instructions per MMA of a kernel, compared with a dual GEMM of Triton's, assembled by the
//! same assembler.

use silumin::Arch;
use silumin::codegen::kernel::Kernel;
use silumin::codegen::plan::Plan;
use silumin::verify::sass::{Audit, Iteration, audit, parse};
use silumin::verify::toolchain::{Nvdisasm, Ptxas, Resources};
use std::error::Error;
use std::path::{Path, PathBuf};

/// Triton's kernels, stored as PTX. Their tiles have K = 256: four MMAs of each product.
const TRITON: [(&str, &str); 2] =
    [("Triton 3.9", "triton_dual_gemm.ptx"), ("Triton 3.9, warp-specialised", "triton_dual_gemm_ws.ptx")];

/// K blocks (64 of K) in an iteration of Triton's kernels.
const TRITON_BLOCKS: u32 = 4;

/// One entry's figures.
struct Line {
    /// K blocks of an iteration, and number of iterations that advance both products by a K block.
    blocks: u32,
    passes: u32,
    name: String,
    resources: Resources,
    audit: Audit,
    smem: String,
    tmem: String,
}

/// Where the checkout that this was built in has them.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/sass")
}

/// Prints the counts; `false` if one of the kernel's own entries uses local memory.
pub fn run(kernel: &Kernel, plan: &Plan) -> Result<bool, Box<dyn Error>> {
    let (ptxas, nvdisasm) = (Ptxas::find()?, Nvdisasm::find()?);
    let mut lines = Vec::new();
    for (resources, audit) in audits(&ptxas, &nvdisasm, &kernel.ptx, kernel.arch)? {
        let launch = kernel.launches.iter().find(|launch| launch.entry == resources.entry);
        let smem = resources.static_smem + launch.map_or(0, |launch| launch.dynamic_smem);
        // A kernel that only applies the gate allocates no tensor memory.
        let tmem = if audit.mma_loops.is_empty() { 0 } else { plan.tmem_columns() };
        lines.push(Line {
            blocks: plan.k_loop.blocks,
            passes: 2 / plan.smem.b_tiles,
            name: resources.entry.clone(),
            audit,
            smem: smem.to_string(),
            tmem: tmem.to_string(),
            resources,
        });
    }
    let clean = lines.iter().all(|line| {
        line.audit.local == 0 && line.resources.spill_stores == 0 && line.resources.spill_loads == 0
    });
    let folder = folder();
    for (name, file) in TRITON {
        let Ok(text) = std::fs::read_to_string(folder.join(file)) else {
            println!(
                "{name} is not compared: {} is not there; run the program from a checkout of silumin",
                folder.join(file).display()
            );
            continue;
        };
        // The assembler takes a text for the chip that it names.
        if !text.contains(&format!(".target {}\n", kernel.arch.target())) {
            continue;
        }
        let head = text.lines().next().unwrap_or_default();
        for (resources, audit) in audits(&ptxas, &nvdisasm, &text, kernel.arch)? {
            let (smem, tmem) = (before(head, " bytes of dynamic"), before(head, " columns of tensor"));
            let name = name.to_owned();
            lines.push(Line { blocks: TRITON_BLOCKS, passes: 1, name, resources, audit, smem, tmem });
        }
    }
    print(&lines);
    Ok(clean)
}

/// Assembles a module and counts every entry.
fn audits(
    ptxas: &Ptxas,
    nvdisasm: &Nvdisasm,
    ptx: &str,
    arch: Arch,
) -> Result<Vec<(Resources, Audit)>, Box<dyn Error>> {
    let assembled = ptxas.assemble(ptx, arch)?;
    let functions = parse(&nvdisasm.disassemble(&assembled.cubin)?);
    let of = |entry: &Resources| functions.iter().find(|function| function.name == entry.entry).map(audit);
    Ok(assembled.entries.iter().filter_map(|entry| Some((entry.clone(), of(entry)?))).collect())
}

/// The word that ends right before `text`.
fn before(line: &str, text: &str) -> String {
    line.split(text).next().and_then(|head| head.split(' ').next_back()).unwrap_or("?").to_owned()
}

fn print(lines: &[Line]) {
    println!(
        "Per iteration of the loop that issues MMAs, and of the one that issues loads (which may be the same loop):"
    );
    for Line { blocks, passes, name, resources: r, audit, smem, tmem } in lines {
        println!("\n{name}");
        let a_block = |iteration: &Iteration| f64::from(iteration.instructions * passes) / f64::from(*blocks);
        match (audit.mma_loops.first(), audit.mma_role()) {
            (Some(main), Some(each)) => println!(
                "  MMA loop   {} instructions: {} MMAs, {} scale-factor copies, {} loads; {each:.1} instructions an MMA, {:.1} a K block of both products{}",
                main.instructions,
                main.mmas,
                main.scale_copies,
                main.loads,
                a_block(main),
                others(&audit.mma_loops, |loop_| loop_.mmas)
            ),
            _ => println!("  MMA loop   none"),
        }
        match (audit.load_loops.first(), audit.load_role()) {
            (Some(main), Some(each)) => println!(
                "  load loop  {} instructions: {} loads; {each:.1} instructions an MMA, {:.1} a K block of both products{}",
                main.instructions,
                main.loads,
                a_block(main),
                if audit.one_loop() { ", the same loop" } else { "" }
            ),
            _ => println!("  load loop  none"),
        }
        println!(
            "  all        {} instructions, {} registers, {} + {} bytes spilled, {} accesses to local memory, {smem} bytes of SMEM, {tmem} columns of TMEM",
            audit.instructions, r.registers, r.spill_stores, r.spill_loads, audit.local
        );
    }
}

/// Instructions of a role's loops after the first (a split tail, the second product), with the operations that one iteration issues.
fn others(loops: &[Iteration], wanted: fn(&Iteration) -> u32) -> String {
    let rest = loops.iter().skip(1).map(|one| format!("{} for {}", one.instructions, wanted(one)));
    let rest: Vec<String> = rest.collect();
    if rest.is_empty() { String::new() } else { format!(" (other loops: {})", rest.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkout_has_the_kernels_to_compare_with() {
        for (name, file) in TRITON {
            assert!(folder().join(file).is_file(), "{name}: {}", folder().join(file).display());
        }
    }
}
