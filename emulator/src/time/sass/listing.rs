//! Parses the output of `nvdisasm -gp -hex -c` for a cubin that was assembled with line information.
//!
//! `ptxas --generate-line-info` records the lines of the PTX text, beside those of `.loc`, in the section
//! `.nv_debug_line_sass`, and does not change the code. `-gp` prints these lines before their instructions.

use super::SassError;
use std::collections::HashMap;

/// First of the control bits, 41 to 61, in the upper word of an instruction.
const CONTROL: u32 = 41;
/// Scoreboards per warp; the number 7 stands for none.
pub(super) const SCOREBOARDS: u8 = 6;

/// A machine instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// As printed, with its guard and operands.
    pub text: String,
    /// With modifiers.
    pub opcode: String,
    /// Whether it has a predicate, as a guard or, for branches, as an operand.
    pub conditional: bool,
    /// Possible jump targets: instructions of the same section.
    pub targets: Vec<usize>,
    /// Clocks until the warp issues its next instruction.
    pub stall: u8,
    /// The scoreboard that its result releases.
    pub write_barrier: Option<u8>,
    /// Scoreboards that it waits for, one bit each.
    pub waits: u8,
}

impl Instruction {
    /// The opcode without modifiers.
    pub fn name(&self) -> &str {
        self.opcode.split('.').next().unwrap_or("")
    }

    /// Whether execution can continue elsewhere than at the next instruction.
    pub fn jumps(&self) -> bool {
        matches!(self.name(), "BRA" | "BRX" | "BRXU" | "JMP" | "JMX" | "JMXU")
    }

    /// Whether execution never continues at the next instruction.
    pub fn ends(&self) -> bool {
        !self.conditional && (self.jumps() || matches!(self.name(), "EXIT" | "RET" | "BPT" | "KILL"))
    }
}

/// A code section: a kernel and the functions that it calls.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    /// Behind `.text.`.
    pub name: String,
    pub code: Vec<Instruction>,
}

/// Parses all code sections.
pub(super) fn read(text: &str) -> Result<Vec<Section>, SassError> {
    let mut reader = Reader::default();
    for line in text.lines() {
        reader.line(line)?;
    }
    reader.close();
    if reader.sections.is_empty() {
        return Err(SassError::Empty);
    }
    if let Some(s) = reader.sections.iter().find(|s| s.code.iter().all(|i| i.line == 0)) {
        return Err(SassError::NoLines { section: s.name.clone() });
    }
    Ok(reader.sections)
}

#[derive(Default)]
struct Reader {
    sections: Vec<Section>,
    /// Labels of the current section, with the index of the instruction after each.
    labels: HashMap<String, usize>,
    /// Labels that instructions jump to, with the index of the instruction.
    wanted: Vec<(usize, String)>,
    /// The current line of the PTX text.
    at: u32,
    /// An instruction whose upper word has not been read yet.
    half: Option<Instruction>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), SassError> {
        let trimmed = line.trim();
        if let Some(name) =
            trimmed.strip_prefix(".section").map(str::trim).and_then(|s| s.strip_prefix(".text."))
        {
            self.close();
            let name = name.split(',').next().unwrap_or(name).to_owned();
            self.sections.push(Section { name, code: Vec::new() });
            self.at = 0;
            return Ok(());
        }
        let Some(section) = self.sections.last_mut() else { return Ok(()) };
        if let Some(note) = trimmed.strip_prefix("//##") {
            // The innermost place comes first; `inlined at` follows.
            let number = note
                .split("line ")
                .nth(1)
                .and_then(|r| r.split([' ', ',']).next())
                .and_then(|n| n.parse().ok());
            self.at = number.ok_or_else(|| SassError::Line { text: trimmed.to_owned() })?;
        } else if let Some(label) = trimmed.strip_suffix(':').filter(|l| !l.contains(char::is_whitespace)) {
            self.labels.insert(label.to_owned(), section.code.len());
        } else if let Some(rest) = trimmed.strip_prefix("/*") {
            if let Some(mut instruction) = self.half.take() {
                control(&mut instruction, rest)
                    .ok_or_else(|| SassError::Line { text: trimmed.to_owned() })?;
                section.code.push(instruction);
            } else {
                let (instruction, targets) =
                    instruction(rest, self.at).ok_or_else(|| SassError::Line { text: trimmed.to_owned() })?;
                self.wanted.extend(targets.into_iter().map(|t| (section.code.len(), t)));
                self.half = Some(instruction);
            }
        }
        Ok(())
    }

    /// Ends a section and resolves its labels to instructions.
    fn close(&mut self) {
        if let Some(section) = self.sections.last_mut() {
            for (from, label) in self.wanted.drain(..) {
                if let (Some(&to), Some(i)) = (self.labels.get(&label), section.code.get_mut(from)) {
                    i.targets.push(to);
                }
            }
        }
        self.labels.clear();
        self.wanted.clear();
        self.half = None;
    }
}

/// Parses `0af0*/  @!P0 BRA `(.L_x_18) ;  /* 0x... */`: the instruction, without its control fields, and the labels
/// that it names.
fn instruction(text: &str, line: u32) -> Option<(Instruction, Vec<String>)> {
    let (address, rest) = text.split_once("*/")?;
    u32::from_str_radix(address.trim(), 16).ok()?;
    let (code, _) = rest.split_once(';')?;
    let code = code.trim().trim_start_matches('{').trim();
    let text = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let (guard, code) = match code.strip_prefix('@') {
        Some(c) => c.split_once(char::is_whitespace).map(|(g, c)| (Some(g), c.trim()))?,
        None => (None, code),
    };
    let (opcode, operands) = code.split_once(char::is_whitespace).unwrap_or((code, ""));
    let mut i = Instruction {
        line,
        text,
        opcode: opcode.to_owned(),
        conditional: guard.is_some_and(|g| g != "PT" && g != "UPT"),
        targets: Vec::new(),
        stall: 0,
        write_barrier: None,
        waits: 0,
    };
    let mut labels = Vec::new();
    // `BSSY` and its like name where lanes meet; nothing jumps there by them.
    if i.jumps() || i.name() == "CALL" {
        let own = operands.split('`').next().unwrap_or("");
        i.conditional |= own.contains('P') && i.name() == "BRA";
        for part in operands.split('`').skip(1) {
            if let Some(l) = part.strip_prefix('(').and_then(|p| p.split(')').next()) {
                labels.push(l.to_owned());
            }
        }
        if let Some((_, list)) = operands.split_once("BRANCH_TARGETS") {
            let list = list.split('"').next().unwrap_or("");
            labels.extend(list.split(',').map(|l| l.trim().to_owned()));
        }
    }
    // A warp whose lanes all take part never takes it.
    if opcode.starts_with("BRA.DIV") {
        i.conditional = true;
        labels.clear();
    }
    Some((i, labels))
}

/// Parses ` 0x000fea0003800000 */`, the upper word, into the control fields.
fn control(i: &mut Instruction, text: &str) -> Option<()> {
    let word = text.trim().trim_end_matches("*/").trim().strip_prefix("0x")?;
    let bits = (u64::from_str_radix(word, 16).ok()? >> CONTROL) as u32;
    i.stall = (bits & 15) as u8;
    i.write_barrier = Some((bits >> 5 & 7) as u8).filter(|&b| b < SCOREBOARDS);
    i.waits = (bits >> 11 & 63) as u8;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
	.section	.text.k,"ax",@progbits
.text.k:
	//## File ".nv_debug_ptx_txt", line 302
.L_x_77:
        /*0ae0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R4+URZ+0x34800], R7 ;   /* 0x03480007040075a7 */
                                                                                               /* 0x000e240008001100 */
	//## File ".nv_debug_ptx_txt", line 303 inlined at ".nv_debug_ptx_txt", line 12
        /*0af0*/              @!P0 BRA `(.L_x_77) ;                                            /* 0x0000003000e08947 */
                                                                                               /* 0x001fea0003800000 */
        /*0b00*/                   BRA.U !UP1, `(.L_x_77) ;                                    /* 0x0000003000e08947 */
                                                                                               /* 0x000fea0003800000 */
        /*0b10*/                   EXIT ;                                                      /* 0x0000003000e08947 */
                                                                                               /* 0x000fea0003800000 */
"#;

    #[test]
    fn a_listing_is_read() {
        let sections = read(TEXT).expect("a listing");
        let code = &sections[0].code;
        assert_eq!((sections[0].name.as_str(), code.len()), ("k", 4));
        assert_eq!((code[0].line, code[0].stall, code[0].write_barrier, code[0].waits), (302, 2, Some(0), 0));
        assert_eq!(code[0].name(), "SYNCS");
        assert_eq!((code[1].line, code[1].stall, code[1].write_barrier, code[1].waits), (303, 5, None, 1));
        assert_eq!((code[1].targets.as_slice(), code[1].conditional), (&[0][..], true));
        assert_eq!((code[2].targets.as_slice(), code[2].conditional), (&[0][..], true));
        assert!(code[3].ends() && !code[2].ends());
    }

    #[test]
    fn what_is_no_listing_is_refused() {
        assert!(matches!(read("nothing"), Err(SassError::Empty)));
        let bare = TEXT.lines().filter(|l| !l.contains("//##")).collect::<Vec<_>>().join("\n");
        assert!(matches!(read(&bare), Err(SassError::NoLines { .. })));
        let cut = TEXT.replace("0x000e240008001100", "nothing");
        assert!(matches!(read(&cut), Err(SassError::Line { .. })));
    }
}
