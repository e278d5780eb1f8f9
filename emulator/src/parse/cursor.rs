//! Reads characters of PTX text: white space, comments, words, numbers, and the current line number.

/// A syntax error and its line, without the file name and the line's text.
#[derive(Debug)]
pub(crate) struct Syntax {
    pub line: u32,
    /// Position in the text, in bytes.
    pub pos: usize,
    pub message: String,
}

pub(crate) type Parsed<T> = Result<T, Syntax>;

/// A numeric literal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(u64),
    Float(f64),
    F32(u32),
    F64(u64),
}

/// A reading position in the text.
pub(crate) struct Cursor<'t> {
    pub text: &'t str,
    bytes: &'t [u8],
    pub pos: usize,
    pub line: u32,
}

pub(crate) fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c == b'$' || c == b'%'
}

impl<'t> Cursor<'t> {
    pub fn new(text: &'t str) -> Self {
        Cursor { text, bytes: text.as_bytes(), pos: 0, line: 1 }
    }

    pub fn error<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(Syntax { line: self.line, pos: self.pos, message: message.into() })
    }

    /// Skips white space and comments.
    pub fn skip(&mut self) {
        while let Some(&c) = self.bytes.get(self.pos) {
            match c {
                b'\n' => {
                    self.line += 1;
                    self.pos += 1;
                }
                b' ' | b'\t' | b'\r' | 0x0c => self.pos += 1,
                b'/' if self.bytes.get(self.pos + 1) == Some(&b'/') => self.skip_line(),
                b'/' if self.bytes.get(self.pos + 1) == Some(&b'*') => {
                    self.pos += 2;
                    while let Some(&c) = self.bytes.get(self.pos) {
                        if c == b'*' && self.bytes.get(self.pos + 1) == Some(&b'/') {
                            self.pos += 2;
                            break;
                        }
                        self.line += u32::from(c == b'\n');
                        self.pos += 1;
                    }
                }
                _ => return,
            }
        }
    }

    /// Moves to the end of the line.
    pub fn skip_line(&mut self) {
        while let Some(&c) = self.bytes.get(self.pos) {
            if c == b'\n' {
                return;
            }
            self.pos += 1;
        }
    }

    /// Moves to the start of the next line that must begin a function, or to the end.
    pub fn skip_to_function(&mut self) {
        const STARTS: [&str; 5] = [".visible", ".entry", ".func", ".weak", ".extern"];
        loop {
            self.skip_line();
            if self.pos >= self.bytes.len() {
                return;
            }
            self.pos += 1;
            self.line += 1;
            let rest = self.text.get(self.pos..).unwrap_or("");
            if STARTS.iter().any(|start| rest.starts_with(start)) {
                return;
            }
        }
    }

    /// The next character that is not white space or in a comment; 0 at the end.
    pub fn peek(&mut self) -> u8 {
        self.skip();
        self.bytes.get(self.pos).copied().unwrap_or(0)
    }

    /// The character `n` positions ahead, without skipping white space.
    pub fn at(&self, n: usize) -> u8 {
        self.bytes.get(self.pos + n).copied().unwrap_or(0)
    }

    /// Consumes `c` if it is next.
    pub fn eat(&mut self, c: u8) -> bool {
        let hit = self.peek() == c && self.pos < self.bytes.len();
        self.pos += usize::from(hit);
        hit
    }

    pub fn expect(&mut self, c: u8) -> Parsed<()> {
        if self.eat(c) {
            return Ok(());
        }
        let found = self.found();
        self.error(format!("expected `{}`, found {found}", c as char))
    }

    /// The next few characters, for messages.
    pub fn found(&mut self) -> String {
        if self.peek() == 0 {
            return "the end of the file".to_owned();
        }
        let rest = &self.text[self.pos..];
        let end = rest.char_indices().map(|(i, _)| i).find(|&i| i >= 16).unwrap_or(rest.len());
        format!("`{}`", rest[..end].lines().next().unwrap_or("").trim_end())
    }

    /// An identifier: letters, digits, `_`, `$`, `%`.
    pub fn word(&mut self) -> Parsed<&'t str> {
        self.skip();
        let start = self.pos;
        while is_word(self.at(0)) {
            self.pos += 1;
        }
        if start == self.pos {
            let found = self.found();
            return self.error(format!("expected a name, found {found}"));
        }
        Ok(&self.text[start..self.pos])
    }

    /// An identifier with dotted parts and `::`, as opcodes and `%tid.x` are written.
    pub fn dotted(&mut self) -> Parsed<&'t str> {
        self.skip();
        let start = self.pos;
        loop {
            if is_word(self.at(0)) || (self.at(0) == b'.' && is_word(self.at(1))) {
                self.pos += 1;
            } else if self.at(0) == b':' && self.at(1) == b':' {
                self.pos += 2;
            } else {
                break;
            }
        }
        if start == self.pos {
            let found = self.found();
            return self.error(format!("expected an instruction or a name, found {found}"));
        }
        Ok(&self.text[start..self.pos])
    }

    /// Consumes a directive `.name`, if one is next, and returns `name`. It ends at the next dot: CUDA's fp16 headers
    /// write `.reg.b32`.
    pub fn directive(&mut self) -> Option<&'t str> {
        if self.peek() != b'.' || !is_word(self.at(1)) {
            return None;
        }
        self.pos += 1;
        let start = self.pos;
        loop {
            match self.at(0) {
                c if is_word(c) => self.pos += 1,
                b':' if self.at(1) == b':' => self.pos += 2,
                _ => return Some(&self.text[start..self.pos]),
            }
        }
    }

    /// A quoted string, without its quotes.
    pub fn string(&mut self) -> Parsed<&'t str> {
        self.expect(b'"')?;
        let start = self.pos;
        loop {
            match self.at(0) {
                b'"' => break,
                b'\\' => self.pos += 2,
                0 | b'\n' => return self.error("string without its closing quote"),
                _ => self.pos += 1,
            }
        }
        let Some(s) = self.text.get(start..self.pos) else {
            return self.error("malformed string");
        };
        self.pos += 1;
        Ok(s)
    }

    /// An unsigned number: decimal, hex, octal, binary, `0f`, `0d`, or a decimal float.
    pub fn number(&mut self) -> Parsed<Number> {
        self.skip();
        let start = self.pos;
        while self.at(0).is_ascii_alphanumeric()
            || (self.at(0) == b'.' && self.at(1).is_ascii_digit())
            || (self.pos > start
                && matches!(self.at(0), b'+' | b'-')
                && matches!(self.bytes[self.pos - 1], b'e' | b'E')
                && is_decimal_float(&self.text[start..self.pos - 1])
                && self.at(1).is_ascii_digit())
        {
            self.pos += 1;
        }
        if self.at(0) == b'.' && self.pos > start && !is_word(self.at(1)) {
            self.pos += 1;
        }
        let s = &self.text[start..self.pos];
        let lower = s.to_ascii_lowercase();
        let bad = || Syntax { line: self.line, pos: start, message: format!("`{s}` is not a number") };
        if let Some(hex) = lower.strip_prefix("0f") {
            if hex.len() != 8 {
                return Err(bad());
            }
            return u32::from_str_radix(hex, 16).map(Number::F32).map_err(|_| bad());
        }
        if let Some(hex) = lower.strip_prefix("0d") {
            if hex.len() != 16 {
                return Err(bad());
            }
            return u64::from_str_radix(hex, 16).map(Number::F64).map_err(|_| bad());
        }
        if let Some(hex) = lower.strip_prefix("0x") {
            return u64::from_str_radix(hex.trim_end_matches('u'), 16).map(Number::Int).map_err(|_| bad());
        }
        if let Some(bin) = lower.strip_prefix("0b") {
            return u64::from_str_radix(bin.trim_end_matches('u'), 2).map(Number::Int).map_err(|_| bad());
        }
        let digits = lower.trim_end_matches('u');
        if digits.bytes().all(|c| c.is_ascii_digit()) && !digits.is_empty() {
            let radix = if digits.len() > 1 && digits.starts_with('0') { 8 } else { 10 };
            return u64::from_str_radix(digits, radix).map(Number::Int).map_err(|_| bad());
        }
        lower.parse::<f64>().map(Number::Float).map_err(|_| bad())
    }
}

fn is_decimal_float(s: &str) -> bool {
    !s.is_empty() && s.bytes().all(|c| c.is_ascii_digit() || c == b'.')
}
