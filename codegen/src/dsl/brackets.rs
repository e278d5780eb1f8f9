//! The angle brackets as they are written: entries with their tokens, meaning nothing yet.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Error, Ident, Lit, Result, Token};

/// Several errors that are told at once.
#[derive(Default)]
pub(super) struct Errors(Option<Error>);

impl Errors {
    pub(super) fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            None => self.0 = Some(error),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// `result` if nothing else was wrong, else all that was.
    pub(super) fn finish<T>(self, result: Result<T>) -> Result<T> {
        match (self.0, result) {
            (None, result) => result,
            (Some(errors), Ok(_)) => Err(errors),
            (Some(mut errors), Err(error)) => {
                errors.combine(error);
                Err(errors)
            }
        }
    }
}

/// The brackets and what they hold.
#[derive(Default)]
pub(super) struct Brackets {
    /// `<` and `>`, or nothing where there are none: where errors go that no entry is to blame for.
    pub(super) ends: TokenStream,
    /// `IN -> OUT`, as often as it was written.
    pub(super) arrows: Vec<(Ident, Ident)>,
    /// `NAME: FORMAT`, in order.
    pub(super) named: Vec<(Ident, Ident)>,
    /// `KNOB = VALUE`, in order.
    pub(super) knobs: Vec<(Ident, TokenStream)>,
}

impl Brackets {
    /// Reads the brackets, if there are any. A malformed entry is skipped after its error is kept.
    ///
    /// # Errors
    /// Only where what follows can't be told apart from the brackets any more.
    pub(super) fn parse(input: ParseStream, errors: &mut Errors) -> Result<Self> {
        let mut brackets = Brackets::default();
        if !input.peek(Token![<]) {
            return Ok(brackets);
        }
        let open: Token![<] = input.parse()?;
        open.to_tokens(&mut brackets.ends);
        loop {
            if input.is_empty() {
                return Err(Error::new_spanned(open, "this `<` has no closing `>`"));
            }
            if input.peek(Token![>]) {
                input.parse::<Token![>]>()?.to_tokens(&mut brackets.ends);
                return Ok(brackets);
            }
            if let Err(error) = brackets.entry(input) {
                errors.push(error);
                value(input);
            }
            if input.peek(Token![,]) {
                input.parse::<Token![,]>()?;
            } else if !input.peek(Token![>]) && !input.is_empty() {
                return Err(input.error("expected `,` or `>`"));
            }
        }
    }

    fn entry(&mut self, input: ParseStream) -> Result<()> {
        if !input.peek(Ident::peek_any) {
            return Err(
                input.error("expected formats (`nvfp4 -> f16`, or `A: nvfp4`) or a knob (`stages = auto`)")
            );
        }
        let name = Ident::parse_any(input)?;
        if input.peek(Token![->]) {
            input.parse::<Token![->]>()?;
            self.arrows.push((name, format(input)?));
        } else if input.peek(Token![:]) && !input.peek(Token![::]) {
            input.parse::<Token![:]>()?;
            self.named.push((name, format(input)?));
        } else if input.peek(Token![=]) && !input.peek(Token![==]) {
            let equals: Token![=] = input.parse()?;
            let value = value(input);
            if value.is_empty() {
                return Err(Error::new_spanned(equals, format!("`{name}` is given no value")));
            }
            self.knobs.push((name, value));
        } else {
            let message = format!(
                "`{name}` is not an entry: formats are `nvfp4 -> f16` or `A: nvfp4`, and a knob is given \
                 a value, as in `stages = auto`"
            );
            return Err(Error::new(name.span(), message));
        }
        Ok(())
    }
}

fn format(input: ParseStream) -> Result<Ident> {
    if !input.peek(Ident::peek_any) {
        return Err(input.error("expected the name of a format"));
    }
    Ident::parse_any(input)
}

/// The tokens up to the entry's end, which is left: a `,` or `>` outside of brackets, or the end of
/// the input. An arrow's `>` is no end.
fn value(input: ParseStream) -> TokenStream {
    let mut tokens = TokenStream::new();
    while !input.is_empty() && !input.peek(Token![,]) && !input.peek(Token![>]) {
        let arrow = input.peek(Token![->]);
        for _ in 0..if arrow { 2 } else { 1 } {
            match input.parse::<TokenTree>() {
                Ok(token) => tokens.extend([token]),
                Err(_) => return tokens,
            }
        }
    }
    tokens
}

/// How deep a value's brackets are read. No knob has any deeper.
const MAX_DEPTH: usize = 8;

/// A value as text, spelt as knobs print it: `[128, 64, 256]`, `split_tail(2)`, `[a: evict_first]`;
/// integers without `_`.
pub(super) fn text(tokens: &TokenStream) -> String {
    let mut out = String::new();
    write(tokens.clone(), MAX_DEPTH, &mut out);
    out
}

fn write(tokens: TokenStream, depth: usize, out: &mut String) {
    for token in tokens {
        // Words are kept apart; all else says where it ends.
        let word = matches!(token, TokenTree::Ident(_) | TokenTree::Literal(_));
        if word && out.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '"') {
            out.push(' ');
        }
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::None => ("", ""),
                };
                out.push_str(open);
                match depth {
                    0 => out.push_str("..."),
                    _ => write(group.stream(), depth - 1, out),
                }
                out.push_str(close);
            }
            TokenTree::Punct(punct) => {
                out.push(punct.as_char());
                if matches!(punct.as_char(), ',' | ':') {
                    out.push(' ');
                }
            }
            TokenTree::Ident(ident) => out.push_str(&ident.to_string()),
            TokenTree::Literal(literal) => match Lit::new(literal) {
                Lit::Int(number) if number.suffix().is_empty() => out.push_str(number.base10_digits()),
                other => out.push_str(&other.to_token_stream().to_string()),
            },
        }
    }
}
