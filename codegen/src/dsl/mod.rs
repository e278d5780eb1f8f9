//! The language of `dual_gemm!` and `gemm!`: mathematics with formats and knobs in angle brackets.
//!
//! ```text
//! dual_gemm!(<nvfp4 -> f16> silu(A @ B1) * (A @ B2))
//! gemm!(<nvfp4 -> bf16> alpha * (A @ B) + bias[n] + residual[m, n])
//!
//! dual_gemm! {
//!     /// The MLP's gate.
//!     pub SwiGlu<A: nvfp4, B: nvfp4, C: f16, tile = [128, 128, 256]> = silu(A @ B1) * (A @ B2);
//! }
//! ```
//!
//! ```text
//! input    := declare [','] | item+
//! item     := ATTRIBUTE* VISIBILITY NAME [brackets] '=' GATE ';'
//! declare  := [brackets] GATE
//! brackets := '<' [entry (',' entry)* [',']] '>'
//! entry    := FORMAT '->' FORMAT | NAME ':' FORMAT | KNOB '=' VALUE
//! ```
//!
//! The gate's own grammar is that of [`gate::parse`](mod@crate::gate::parse), a knob's values are those that
//! [`Config::set`](crate::config::Config::set) takes. Three entries have knobs' form and are none:
//! `shape = [M, N, K]` fixes the shape, so that everything is checked while compiling, and
//! `arch = sm_100a` names the chips, and `preactivations = bf16` keeps what the gate reads. All may be left out,
//! brackets included.
//!
//! Everything here is plain tokens to plain tokens, so that it can be tested without a compiler;
//! the procedural macro is a shell around [`expand`].
//!
//! * `mod.rs`: the two forms, [`Input`] and [`expand`].
//! * `brackets.rs`: what is in the angle brackets, as it is written.
//! * `declare.rs`: what that means: [`Declaration`].
//! * `hints.rs`: what is legal and probably not meant.
//! * `check.rs`: what `validate` says to it, with and without a shape.
//! * `tokens.rs`: a [`Spec`](crate::spec::Spec) as the expression that makes it again.

mod brackets;
mod check;
mod declare;
mod hints;
mod tokens;

pub use declare::{DSL_KNOBS, Declaration, Note};
pub use tokens::spec_tokens;

use crate::problem::Operation;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Attribute, Error, Ident, Result, Token, Visibility};

/// A whole invocation of `dual_gemm!` or `gemm!`.
pub enum Input {
    /// `dual_gemm!(<...> gate)`
    Expression(Box<Declaration>),
    /// `dual_gemm! { pub Name<...> = gate; }`
    Items(Vec<Item>),
}

/// A named dual GEMM or GEMM.
pub struct Item {
    /// Documentation and other attributes, passed through.
    pub attributes: Vec<Attribute>,
    /// Who sees it.
    pub visibility: Visibility,
    /// Its name, which is also that of its kernels.
    pub name: Ident,
    /// What it computes.
    pub declaration: Declaration,
}

/// Expands `dual_gemm!` or `gemm!`: an expression of type `::silumin::DualGemm`, or for each item a static
/// `LazyLock` of one. Errors become `compile_error!`s with the caret under what is wrong.
pub fn expand(operation: Operation, tokens: TokenStream) -> TokenStream {
    let parse = |input: ParseStream| parse(operation, input);
    match parse.parse2(tokens.clone()) {
        Ok(Input::Expression(declaration)) => dual_gemm(&declaration),
        Ok(Input::Items(items)) => items.iter().map(item).collect(),
        Err(error) => {
            let errors = error.into_compile_error();
            // Several in place of an expression have to be statements.
            if is_items.parse2(tokens).unwrap_or(false) { errors } else { quote!({ #errors }) }
        }
    }
}

fn dual_gemm(declaration: &Declaration) -> TokenStream {
    let spec = spec_tokens(&declaration.spec);
    let shape = declaration.shape.map(|shape| {
        let shape = tokens::shape(shape);
        quote!(.with_shape(#shape))
    });
    let value = quote!(::silumin::DualGemm::new(#spec)#shape);
    if declaration.notes.is_empty() {
        return value;
    }
    // Macros warn by using something that is deprecated.
    let notes = declaration.notes.iter().map(|Note { text, constant, span }| {
        let old = Ident::new(constant, *span);
        quote_spanned!(*span=> {
            #[deprecated(note = #text)]
            const #old: () = ();
            #old
        };)
    });
    quote!({ #(#notes)* #value })
}

fn item(item: &Item) -> TokenStream {
    let Item { attributes, visibility, name, declaration } = item;
    let value = dual_gemm(declaration);
    quote! {
        #(#attributes)*
        #[allow(non_upper_case_globals)]
        #visibility static #name: ::std::sync::LazyLock<::silumin::DualGemm> =
            ::std::sync::LazyLock::new(|| #value);
    }
}

/// Reads and checks an invocation.
///
/// # Errors
/// Everything that is wrong with it, each with its place.
pub fn parse(operation: Operation, input: ParseStream) -> Result<Input> {
    if !starts_item(input) {
        let declaration = Declaration::parse(operation, input, None)?;
        input.parse::<Option<Token![,]>>()?;
        if !input.is_empty() {
            return Err(input.error("expected the end: in parentheses there is one gate"));
        }
        return Ok(Input::Expression(Box::new(declaration)));
    }
    let mut items = Vec::new();
    while !input.is_empty() {
        items.push(Item::parse(operation, input)?);
    }
    Ok(Input::Items(items))
}

/// Whether an item is next, and not a gate: no gate has an attribute, a visibility, or `<` or `=`
/// behind its first name.
fn starts_item(input: ParseStream) -> bool {
    let named = input.peek(Ident) && (input.peek2(Token![<]) || input.peek2(Token![=]));
    input.peek(Token![#]) || input.peek(Token![pub]) || named
}

fn is_items(input: ParseStream) -> Result<bool> {
    let items = starts_item(input);
    input.parse::<TokenStream>()?;
    Ok(items)
}

/// Longest name of an item: PTX names here have at most 200 characters, and the shape follows.
const NAME_LIMIT: usize = 160;

impl Item {
    fn parse(operation: Operation, input: ParseStream) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let name = Ident::parse_any(input)?;
        let mut errors = brackets::Errors::default();
        if let Err(error) = check_name(&name) {
            errors.push(error);
        }
        let declaration = errors.finish(Declaration::parse(operation, input, Some(&name)))?;
        if input.is_empty() {
            return Err(Error::new_spanned(name.to_token_stream(), "this item has no `;` at its end"));
        }
        input.parse::<Token![;]>()?;
        Ok(Item { attributes, visibility, name, declaration })
    }
}

/// An item's name has to be one in Rust and in PTX.
fn check_name(name: &Ident) -> Result<()> {
    let text = name.to_string();
    let message = if crate::gate::parse::name.parse2(name.to_token_stream()).is_err() {
        format!("`{text}` can't name a kernel: use ASCII letters, digits and `_`, no keyword and no `r#`")
    } else if text.len() > NAME_LIMIT {
        format!("this name has {} characters, and a kernel's has at most {NAME_LIMIT}", text.len())
    } else {
        return Ok(());
    };
    Err(Error::new(name.span(), message))
}
