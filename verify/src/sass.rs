//! Reads `nvdisasm` listings: finds the loops that issue MMAs and the loops that issue loads, and counts the
//! instructions of an iteration.
//!
//! A loop is a natural loop of the control flow: a branch back to a block that dominates it, and all blocks that can
//! reach the branch without leaving the loop. An iteration is the path through it that issues most of its MMAs (or
//! loads) with the fewest instructions, so that every wait finds its barrier ready. Predicated instructions count,
//! because they are issued.
//!
//! Names are those of `nvdisasm`: `UTCOMMA`, `UTCQMMA`, `UTCHMMA` and `UTCIMMA` are `tcgen05.mma` of the various kinds,
//! `UTCCP` is `tcgen05.cp`, `UTMALDG` and `UBLKCP` are loads by tensor map and by bulk copy.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The predicate before the instruction, as `@P0` or `@!UP1`.
    pub guard: Option<String>,
    /// Mnemonic and modifiers.
    pub opcode: String,
    /// The rest of the line.
    pub operands: String,
}

/// A code section: a kernel and the functions assembled with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The entry's name.
    pub name: String,
    /// Its instructions, in order.
    pub instructions: Vec<Instruction>,
    /// Index of the instruction that follows each label.
    labels: HashMap<String, usize>,
}

/// Instruction counts of one loop iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Iteration {
    /// Tensor-core MMAs.
    pub mmas: u32,
    /// Loads by tensor map and by bulk copy.
    pub loads: u32,
    /// Copies of scale factors to tensor memory.
    pub scale_copies: u32,
    /// All instructions, those above included.
    pub instructions: u32,
}

/// Instruction counts of a kernel's loops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Audit {
    /// The innermost loops that issue MMAs, the one with most MMAs first.
    pub mma_loops: Vec<Iteration>,
    /// The innermost loops that issue loads, the one with most loads first. A loop that issues both is in both lists.
    pub load_loops: Vec<Iteration>,
    /// Loads and stores of local memory.
    pub local: usize,
    /// All instructions.
    pub instructions: usize,
}

impl Audit {
    /// Instructions per MMA in the loop with most MMAs.
    #[must_use]
    pub fn mma_role(&self) -> Option<f64> {
        let main = self.mma_loops.first()?;
        Some(f64::from(main.instructions) / f64::from(main.mmas))
    }

    /// Instructions of the loop with most loads per MMA, where one iteration of it feeds one of the MMA loop.
    #[must_use]
    pub fn load_role(&self) -> Option<f64> {
        let (loads, main) = (self.load_loops.first()?, self.mma_loops.first()?);
        Some(f64::from(loads.instructions) / f64::from(main.mmas))
    }

    /// Whether one loop issues both loads and MMAs, so that waits for one delay the other.
    #[must_use]
    pub fn one_loop(&self) -> bool {
        self.mma_loops.first().is_some_and(|main| main.loads > 0)
    }
}

impl Instruction {
    fn is_mma(&self) -> bool {
        let name = self.opcode.split('.').next().unwrap_or_default();
        name.starts_with("UTC") && name.ends_with("MMA")
    }

    fn is_load(&self) -> bool {
        self.opcode.starts_with("UTMALDG") || self.opcode.starts_with("UBLKCP.S.G")
    }

    fn is_local(&self) -> bool {
        let name = self.opcode.split('.').next().unwrap_or_default();
        name == "LDL" || name == "STL"
    }

    fn cost(&self) -> Iteration {
        Iteration {
            mmas: self.is_mma().into(),
            loads: self.is_load().into(),
            scale_copies: self.opcode.starts_with("UTCCP").into(),
            instructions: 1,
        }
    }

    /// The labels that an instruction may jump to, and whether it may also fall through.
    fn targets(&self) -> (Vec<&str>, bool) {
        let name = self.opcode.split('.').next().unwrap_or_default();
        match name {
            "BRA" => {
                let target = self.operands.split_once("`(").and_then(|(_, rest)| rest.split_once(')'));
                // `BRA.U !UP0, ...` has its predicate among the operands.
                let conditional = self.guard.is_some() || !self.operands.starts_with("`(");
                (target.map(|(label, _)| label).into_iter().collect(), conditional)
            }
            "BRX" => {
                let list = self.operands.split_once("BRANCH_TARGETS ").map(|(_, rest)| rest);
                let list = list.and_then(|rest| rest.split(['"', ' ']).next()).unwrap_or_default();
                (list.split(',').filter(|label| !label.is_empty()).collect(), false)
            }
            "EXIT" | "RET" => (Vec::new(), self.guard.is_some()),
            _ => (Vec::new(), true),
        }
    }
}

/// Parses `nvdisasm` output into functions, one for each code section, in order.
#[must_use]
pub fn parse(text: &str) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    let mut in_text = false;
    for line in text.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix(".section") {
            let name = section.trim().split([',', ' ']).next().unwrap_or_default();
            in_text = name.starts_with(".text.");
            if let (true, Some(name)) = (in_text, name.strip_prefix(".text.")) {
                functions.push(Function {
                    name: name.to_owned(),
                    instructions: Vec::new(),
                    labels: HashMap::new(),
                });
            }
            continue;
        }
        let Some(function) = functions.last_mut().filter(|_| in_text) else { continue };
        if let Some(label) = line.strip_suffix(':') {
            function.labels.insert(label.to_owned(), function.instructions.len());
        } else if let Some(instruction) = instruction(line) {
            function.instructions.push(instruction);
        }
    }
    functions
}

/// `/*0040*/  @!P0 BRA `(.L_x_2) ;`
fn instruction(line: &str) -> Option<Instruction> {
    let (_, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let rest = rest.trim();
    let (guard, rest) = match rest.starts_with('@') {
        true => rest.split_once(char::is_whitespace).map(|(guard, rest)| (Some(guard.to_owned()), rest))?,
        false => (None, rest),
    };
    let rest = rest.trim().trim_end_matches(';').trim_end();
    let (opcode, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let is_opcode = opcode.starts_with(|c: char| c.is_ascii_uppercase());
    is_opcode.then(|| Instruction {
        guard,
        opcode: opcode.trim_end_matches(';').to_owned(),
        operands: operands.trim().to_owned(),
    })
}

/// Counts the instructions of a function's loops.
#[must_use]
pub fn audit(function: &Function) -> Audit {
    let graph = Graph::new(function);
    let loops = graph.loops();
    let of = |wanted: fn(&Iteration) -> u32| {
        let holds = |body: &BTreeSet<usize>| body.iter().any(|block| wanted(&graph.costs[*block]) > 0);
        let inner = loops.iter().filter(|(_, body)| {
            // A loop counts where no loop within it has any of them.
            let smaller = |other: &BTreeSet<usize>| other.len() < body.len() && other.is_subset(body);
            holds(body) && !loops.values().any(|other| smaller(other) && holds(other))
        });
        let mut found: Vec<Iteration> =
            inner.filter_map(|(header, body)| graph.iteration(*header, body, wanted)).collect();
        found.sort_by_key(|iteration| std::cmp::Reverse((wanted(iteration), iteration.instructions)));
        found
    };
    Audit {
        mma_loops: of(|iteration| iteration.mmas),
        load_loops: of(|iteration| iteration.loads),
        local: function.instructions.iter().filter(|instruction| instruction.is_local()).count(),
        instructions: function.instructions.len(),
    }
}

/// Basic blocks and the edges between them.
struct Graph {
    costs: Vec<Iteration>,
    next: Vec<Vec<usize>>,
    /// Dominators of each block, itself included; `None` for an unreachable block.
    dominators: Vec<Option<BTreeSet<usize>>>,
}

impl Graph {
    fn new(function: &Function) -> Graph {
        let code = &function.instructions;
        let mut starts: BTreeSet<usize> = function.labels.values().copied().chain([0]).collect();
        for (at, instruction) in code.iter().enumerate() {
            let (targets, falls) = instruction.targets();
            if !targets.is_empty() || !falls {
                starts.insert(at + 1);
            }
        }
        starts.retain(|start| *start < code.len());
        let starts: Vec<usize> = starts.into_iter().collect();
        let block_at = |at: usize| starts.binary_search(&at).ok();
        let mut costs = Vec::with_capacity(starts.len());
        let mut next = Vec::with_capacity(starts.len());
        for (block, start) in starts.iter().enumerate() {
            let end = starts.get(block + 1).copied().unwrap_or(code.len());
            costs.push(code[*start..end].iter().map(Instruction::cost).fold(Iteration::default(), add));
            let (targets, falls) = code[end - 1].targets();
            let labelled = targets.iter().filter_map(|label| function.labels.get(*label));
            let mut ways: Vec<usize> = labelled.filter_map(|at| block_at(*at)).collect();
            if falls && block + 1 < starts.len() {
                ways.push(block + 1);
            }
            next.push(ways);
        }
        let dominators = dominators(&next);
        Graph { costs, next, dominators }
    }

    fn dominates(&self, above: usize, below: usize) -> bool {
        self.dominators[below].as_ref().is_some_and(|all| all.contains(&above))
    }

    /// The blocks of every natural loop, by its header.
    fn loops(&self) -> BTreeMap<usize, BTreeSet<usize>> {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.next.len()];
        for (block, ways) in self.next.iter().enumerate() {
            ways.iter().for_each(|way| before[*way].push(block));
        }
        let mut loops: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (latch, ways) in self.next.iter().enumerate() {
            for header in ways.iter().copied().filter(|header| self.dominates(*header, latch)) {
                let body = loops.entry(header).or_default();
                body.insert(header);
                let mut open = vec![latch];
                while let Some(block) = open.pop() {
                    // What nothing leads to is no part of it.
                    if self.dominators[block].is_some() && body.insert(block) {
                        open.extend(&before[block]);
                    }
                }
            }
        }
        loops
    }

    /// The path from the header back to it with most of the wanted instructions and, among those, the fewest
    /// instructions.
    fn iteration(
        &self,
        header: usize,
        body: &BTreeSet<usize>,
        wanted: fn(&Iteration) -> u32,
    ) -> Option<Iteration> {
        let better = |one: &Iteration, other: &Iteration| {
            (wanted(one), std::cmp::Reverse(one.instructions))
                > (wanted(other), std::cmp::Reverse(other.instructions))
        };
        let mut best: HashMap<usize, Iteration> = HashMap::from([(header, self.costs[header])]);
        let mut round = None;
        for block in self.forward_order(header, body) {
            let Some(so_far) = best.get(&block).copied() else { continue };
            for way in self.next[block].iter().copied().filter(|way| body.contains(way)) {
                if way == header {
                    if round.as_ref().is_none_or(|other| better(&so_far, other)) {
                        round = Some(so_far);
                    }
                } else if !self.dominates(way, block) {
                    let there = add(so_far, self.costs[way]);
                    if best.get(&way).is_none_or(|other| better(&there, other)) {
                        best.insert(way, there);
                    }
                }
            }
        }
        round
    }

    /// A loop's blocks in topological order, back edges left out.
    fn forward_order(&self, header: usize, body: &BTreeSet<usize>) -> Vec<usize> {
        let forward = |block: usize| {
            let ways = self.next[block].iter().copied();
            ways.filter(move |way| body.contains(way) && *way != header && !self.dominates(*way, block))
        };
        let (mut order, mut seen) = (Vec::new(), BTreeSet::from([header]));
        let mut open = vec![(header, forward(header).collect::<Vec<_>>())];
        while let Some((block, ways)) = open.last_mut() {
            match ways.pop() {
                Some(way) if seen.insert(way) => open.push((way, forward(way).collect())),
                Some(_) => {}
                None => {
                    order.push(*block);
                    open.pop();
                }
            }
        }
        order.reverse();
        order
    }
}

fn add(one: Iteration, other: Iteration) -> Iteration {
    Iteration {
        mmas: one.mmas + other.mmas,
        loads: one.loads + other.loads,
        scale_copies: one.scale_copies + other.scale_copies,
        instructions: one.instructions + other.instructions,
    }
}

fn dominators(next: &[Vec<usize>]) -> Vec<Option<BTreeSet<usize>>> {
    let mut all: Vec<Option<BTreeSet<usize>>> = vec![None; next.len()];
    if let Some(first) = all.first_mut() {
        *first = Some(BTreeSet::from([0]));
    }
    let mut changed = true;
    while changed {
        changed = false;
        for (block, ways) in next.iter().enumerate() {
            let Some(above) = all[block].clone() else { continue };
            for way in ways.iter().copied() {
                let through: BTreeSet<usize> = match &all[way] {
                    Some(known) => known.iter().copied().filter(|b| *b == way || above.contains(b)).collect(),
                    None => above.iter().copied().chain([way]).collect(),
                };
                if all[way].as_ref() != Some(&through) {
                    all[way] = Some(through);
                    changed = true;
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
\t.section\t.nv.info,\"\"
        /*0000*/ \t.byte\t0x04
//--------------------- .text.k --------------------------
\t.section\t.text.k,\"ax\",@progbits
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x37c] ;
        /*0010*/                   BRA.U !UP0, `(.L_x_9) ;
.L_x_1:
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R4], R5 ;
        /*0030*/              @!P0 BRA `(.L_x_5) ;
.L_x_2:
        /*0040*/              @UP0 UTCCP.T.S.4x32dp128bit tmem[UR9], gdesc[UR26] ;
        /*0050*/              @!P1 BRA `(.L_x_3) ;
        /*0060*/                   UTCOMMA.4X gdesc[UR22].A_KEEP, gdesc[UR44], tmem[UR9] ;
        /*0070*/                   UTCOMMA.4X gdesc[UR22].A_REUSE, gdesc[UR52], tmem[UR21] ;
.L_x_3:
        /*0080*/                   BRA.U !UP0, `(.L_x_1) ;
        /*0090*/                   EXIT ;
.L_x_9:
        /*00a0*/                   NOP ;
.L_x_8:
        /*00b0*/                   UTMALDG.2D [UR12], [UR30] ;
        /*00c0*/                   UBLKCP.S.G [UR34], [UR24], UR48 ;
        /*00d0*/                   STL [R1], R2 ;
        /*00e0*/               @P0 BRA `(.L_x_8) ;
        /*00f0*/                   BRX R2 -0x7140    (*\"BRANCH_TARGETS .L_x_9,.L_x_7\"*);
.L_x_7:
        /*0100*/              @!P2 EXIT ;
        /*0110*/                   RET.REL.NODEC R2 `(k) ;
.L_x_5:
        /*0120*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R4], R5 ;
        /*0130*/              @!P0 BRA `(.L_x_5) ;
        /*0140*/                   BRA `(.L_x_2) ;
";

    #[test]
    fn loops_are_found_and_counted_along_the_way_that_works() {
        let functions = parse(TEXT);
        assert_eq!(functions.len(), 1);
        assert_eq!((functions[0].name.as_str(), functions[0].instructions.len()), ("k", 21));
        let audit = audit(&functions[0]);
        // The wait's retry is no part of the iteration, the MMAs under the branch are.
        let mma = Iteration { mmas: 2, loads: 0, scale_copies: 1, instructions: 7 };
        let load = Iteration { mmas: 0, loads: 2, scale_copies: 0, instructions: 4 };
        assert_eq!((&audit.mma_loops[..], &audit.load_loops[..]), (&[mma][..], &[load][..]));
        assert_eq!((audit.local, audit.instructions, audit.one_loop()), (1, 21, false));
        assert_eq!((audit.mma_role(), audit.load_role()), (Some(3.5), Some(2.0)));
    }

    #[test]
    fn text_without_code_has_no_functions_and_no_loops() {
        assert_eq!(parse(".section .nv.info\n/*0000*/ .byte 4"), []);
        let empty = parse(".section .text.k,\"ax\"\n.L_x_1:\n");
        let audit = audit(&empty[0]);
        assert_eq!((audit.mma_role(), audit.load_role(), audit.instructions), (None, None, 0));
    }
}
