//! Takes out of a kernel's text what says nothing: registers that nothing uses, sums with 0 and products with 1.
//!
//! Templates add every offset that the plan has, and declare every register that some layout needs. Were each zero a condition in a
//! template, templates would be hard to read. So the text is tidied once it is whole. Its machine code stays the same.

use std::collections::HashMap;

/// A kernel without what says nothing.
pub(super) fn tidy(ptx: &str) -> String {
    let mut lines: Vec<String> = ptx.lines().map(|line| line.replace(" + 0]", "]")).collect();
    for line in &mut lines {
        if let Some(simpler) = simplified(line) {
            *line = simpler;
        }
    }
    for at in 0..lines.len() {
        forward(&mut lines, at);
    }
    let lines = without_unused(lines.into_iter().filter(|line| line != DROPPED).collect());
    let mut text = lines.join("\n");
    text.push('\n');
    text
}

/// A line that goes. PTX has no such line.
const DROPPED: &str = "\0";

/// A line of one instruction: what stands before its operands (indent and opcode), the operands, and what stands behind them.
struct Instruction<'a> {
    indent: &'a str,
    op: &'a str,
    operands: Vec<&'a str>,
    rest: &'a str,
}

impl<'a> Instruction<'a> {
    /// `None` for a line with a guard, a label, a brace or several instructions: those stay as they are.
    fn parse(line: &'a str) -> Option<Self> {
        let (statement, rest) = line.split_once(';')?;
        let body = statement.trim_start();
        let indent = &statement[..statement.len() - body.len()];
        let (op, operands) = body.split_once(' ')?;
        let plain = op.starts_with(|c: char| c.is_ascii_lowercase())
            && !rest.contains(';')
            && !body.contains(['{', '[']);
        plain.then(|| Instruction { indent, op, operands: operands.split(", ").collect(), rest })
    }

    fn print(&self, op: &str, operands: &[&str]) -> String {
        format!("{}{op} {};{}", self.indent, operands.join(", "), self.rest)
    }
}

/// The line in fewer words, if it adds 0 or multiplies by 1.
fn simplified(line: &str) -> Option<String> {
    let instruction = Instruction::parse(line)?;
    let (name, types) = instruction.op.split_once('.')?;
    let copy = |to: &str, from: &str| {
        let bits = if types.ends_with("64") { "mov.b64" } else { "mov.b32" };
        if to == from { DROPPED.to_owned() } else { instruction.print(bits, &[to, from]) }
    };
    match (name, &instruction.operands[..]) {
        ("add" | "sub" | "or" | "xor" | "shl" | "shr", [to, from, "0"]) => Some(copy(to, from)),
        ("mul", [to, from, "1"]) if types.starts_with("lo") => Some(copy(to, from)),
        ("mad", [to, from, "1", "0"]) if types.starts_with("lo") => Some(copy(to, from)),
        ("mad", [to, from, "1", plus]) if types.starts_with("lo") => {
            Some(instruction.print(&types.replacen("lo", "add", 1), &[to, from, plus]))
        }
        ("mad", [to, from, by, "0"]) => Some(instruction.print(&format!("mul.{types}"), &[to, from, by])),
        _ => None,
    }
}

/// Reads the source of the copy in line `at` where its result is read, if the result is written anew before the code branches.
fn forward(lines: &mut [String], at: usize) {
    let Some(copy) = Instruction::parse(&lines[at]) else { return };
    let ("mov.b32" | "mov.b64", [to, from]) = (copy.op, &copy.operands[..]) else { return };
    if !(to.starts_with('%') && from.starts_with('%')) || from.contains('.') {
        return;
    }
    let (to, from) = ((*to).to_owned(), (*from).to_owned());
    let Some(end) = next_write(&lines[at + 1..], &to, &from) else { return };
    for line in &mut lines[at + 1..=at + 1 + end] {
        let (code, rest) = line.split_at(line.find(';').unwrap_or(line.len()));
        let first = code.find(&to).filter(|_| writes(line, &to)).map_or(0, |place| place + to.len());
        *line = format!("{}{}{rest}", &code[..first], renamed(&code[first..], &to, &from));
    }
    lines[at] = DROPPED.to_owned();
}

/// The number of the line that writes `to` anew, if those before it run one after the other and none writes `from`.
fn next_write(lines: &[String], to: &str, from: &str) -> Option<usize> {
    for (index, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default().trim();
        if code.is_empty() || line == DROPPED {
            continue;
        }
        let straight = code.ends_with(';')
            && code.matches(';').count() == 1
            && !code.starts_with(['.', '{', '}'])
            && !code.contains("bra ")
            && !code.starts_with("ret");
        if !straight {
            return None;
        }
        if writes(line, to) {
            return Instruction::parse(line).map(|_| index);
        }
        if writes(line, from) {
            return None;
        }
    }
    None
}

/// Whether a line of one instruction writes a register. Addresses in brackets are read.
fn writes(line: &str, register: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default().trim();
    let code = match code.strip_prefix('@') {
        Some(guarded) => guarded.split_once(' ').map_or("", |(_, code)| code),
        None => code,
    };
    let Some((_, operands)) = code.split_once(' ') else { return false };
    let written = match operands.chars().next() {
        Some('[') | None => "",
        Some('{') => operands.split('}').next().unwrap_or_default(),
        Some(_) => operands.split(',').next().unwrap_or_default(),
    };
    names(written, register)
}

/// The code with one register in the place of another.
pub(super) fn renamed(code: &str, from: &str, to: &str) -> String {
    let mut text = String::new();
    let mut end = 0;
    for (at, _) in code.match_indices(from) {
        let whole = !code[at + from.len()..].starts_with(is_name);
        text.push_str(&code[end..at]);
        text.push_str(if whole { to } else { from });
        end = at + from.len();
    }
    text + &code[end..]
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether the code names the register.
pub(super) fn names(code: &str, register: &str) -> bool {
    registers(code).any(|name| name == register)
}

/// The registers that a text names, in order.
fn registers(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices('%').map(|(at, _)| {
        let name = &code[at + 1..];
        &code[at..at + 1 + name.find(|c| !is_name(c)).unwrap_or(name.len())]
    })
}

/// The same without declarations of registers that nothing names.
fn without_unused(lines: Vec<String>) -> Vec<String> {
    // A map for each open scope: from a declared register to the line of its declaration, or to nothing once it is used.
    let mut scopes: Vec<HashMap<String, Option<usize>>> = Vec::new();
    let mut unused: HashMap<usize, Vec<String>> = HashMap::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for statement in code.split(';').map(str::trim) {
            let mut statement = statement;
            while let Some(rest) = statement.strip_prefix('{') {
                scopes.push(HashMap::new());
                statement = rest.trim_start();
            }
            if statement.starts_with('}') {
                for (name, line) in scopes.pop().unwrap_or_default() {
                    if let Some(line) = line {
                        unused.entry(line).or_default().push(name);
                    }
                }
            } else if statement.starts_with(".reg ") {
                if let Some(scope) = scopes.last_mut() {
                    scope.extend(registers(statement).map(|name| (name.to_owned(), Some(index))));
                }
            } else {
                registers(statement).for_each(|name| mark_used(&mut scopes, name));
            }
        }
    }
    let kept = lines.into_iter().enumerate().filter_map(|(index, line)| match unused.get(&index) {
        Some(names) => without_names(&line, names),
        None => Some(line),
    });
    kept.collect()
}

/// A register is one of its innermost scope that declares it, by its name or as one of a family such as `%sum<4>`.
fn mark_used(scopes: &mut [HashMap<String, Option<usize>>], name: &str) {
    let family = name.trim_end_matches(|c: char| c.is_ascii_digit());
    for scope in scopes.iter_mut().rev() {
        for declared in [name, family] {
            if let Some(line) = scope.get_mut(declared) {
                *line = None;
                return;
            }
        }
    }
}

/// A line with declarations, without some of the names; `None` if nothing else is on it.
fn without_names(line: &str, names: &[String]) -> Option<String> {
    let (code, comment) = line.split_at(line.find("//").unwrap_or(line.len()));
    let is_kept =
        |declared: &&str| !registers(declared).any(|name| names.iter().any(|unused| unused == name));
    let mut kept_code = String::new();
    for statement in code.split_inclusive(';') {
        match (statement.find(".reg "), statement.find('%')) {
            (Some(start), Some(first)) => {
                let declared = statement[first..].trim_end_matches(';');
                let kept: Vec<&str> = declared.split(", ").filter(is_kept).collect();
                match kept.is_empty() {
                    // A scope may open before it.
                    true => kept_code.push_str(statement[..start].trim_end()),
                    false => kept_code.push_str(&format!("{}{};", &statement[..first], kept.join(", "))),
                }
            }
            (Some(_), None) | (None, _) => kept_code.push_str(statement),
        }
    }
    (!kept_code.trim().is_empty()).then(|| kept_code + comment)
}

#[cfg(test)]
mod tests {
    use super::tidy;

    #[test]
    fn zeros_and_ones_go() {
        let text = "{\n    .reg .b32 %a, %b, %c;\n    mul.lo.u32 %a, %b, 1;\n    add.u32 %a, %a, 0;\n    mad.lo.u32 %c, %a, %b, 0;\n\
                    L:\n    st.shared.b32 [%c + 0], %a;\n}\n";
        let tidied = "{\n    .reg .b32 %a, %b, %c;\n    mov.b32 %a, %b;\n    mul.lo.u32 %c, %a, %b;\nL:\n    st.shared.b32 [%c], %a;\n}\n";
        assert_eq!(tidy(text), tidied);
    }

    #[test]
    fn a_copy_is_read_at_its_source_where_nothing_comes_between() {
        let text = "{\n    .reg .b32 %a, %b, %word;\n    add.u32 %word, %a, 0;\n    st.shared.b32 [%word], %b;\n    add.u32 %word, %word, %b;\n\
                    \n    st.shared.b32 [%word], %b;\n}\n";
        let tidied = "{\n    .reg .b32 %a, %b, %word;\n    st.shared.b32 [%a], %b;\n    add.u32 %word, %a, %b;\n\n    st.shared.b32 [%word], %b;\n}\n";
        assert_eq!(tidy(text), tidied);
        // The source changes before the copy is read, or the code may go elsewhere.
        for between in
            ["mov.b32 %a, 3;", "@%p bra L;", "ld.shared.v2.b32 { %b, %a }, [%b];", "@%p mov.b32 %word, 3;"]
        {
            let text = format!(
                "{{\n    .reg .pred %p;\n    .reg .b32 %a, %b, %word;\n    add.u32 %word, %a, 0;\n    {between}\n    st.shared.b32 [%word], %b;\n    \
                 mov.b32 %word, %b;\n    @%p st.shared.b32 [%word], %b;\n}}\n"
            );
            assert!(tidy(&text).contains("mov.b32 %word, %a;"), "{between}: {}", tidy(&text));
        }
    }

    #[test]
    fn a_scope_on_one_line_keeps_its_instructions() {
        let text = "{\n    .reg .f32 %x;\n    { .reg .b32 %a<3>; .reg .b64 %b<2>, %c; mov.b64 %b1, {%x, %x}; mov.b64 {%x, %x}, %b1; }\n}\n";
        let tidied = "{\n    .reg .f32 %x;\n    { .reg .b64 %b<2>; mov.b64 %b1, {%x, %x}; mov.b64 {%x, %x}, %b1; }\n}\n";
        assert_eq!(tidy(text), tidied);
    }

    #[test]
    fn registers_that_nothing_names_go() {
        let text = "{\n    .reg .b32 %a, %b;                // both\n    .reg .f32 %sum<4>, %other<2>;\n    .reg .pred %p;\n    mov.b32 %b, 1;\n    {\n        .reg .b32 %b;\n    }\n    \
                    mov.f32 %sum3, 0f00000000;\n}\n";
        let tidied = "{\n    .reg .b32 %b;                // both\n    .reg .f32 %sum<4>;\n    mov.b32 %b, 1;\n    {\n    }\n    mov.f32 %sum3, 0f00000000;\n}\n";
        assert_eq!(tidy(text), tidied);
    }
}
