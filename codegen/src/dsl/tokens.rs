//! A [`Spec`] as the expression that makes it again: constructors of constants, nothing to parse
//! and nothing that can fail at run time. Paths start at `::silumin::codegen`, the facade's name
//! for this crate.

use crate::config::{
    AReuse, Accumulators, Buffers, CacheHints, Config, Consumers, CtaGroup, Eviction, KOrder, Multicast,
    Promotion, Raster, Schedule, Setting, SfLoad, SfPreload, Store, Strategy, Switch, Tile, TmemLoad,
    TmemShape,
};
use crate::gate::{Expr, Fragment, Gate, GateCode, GateSource, GateVector, SplitCode};
use crate::problem::{Formats, Groups, ProductFormat, Shape};
use crate::spec::Spec;
use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use std::fmt::Debug;

/// The expression, of type `::silumin::codegen::spec::Spec`, whose value is `spec`.
pub fn spec_tokens(spec: &Spec) -> TokenStream {
    // Patterns name every field, here and below, so that a new one cannot be forgotten.
    let Spec { name, gate: mathematics, formats: stored, config: knobs, code } = spec;
    let (gate, formats, config) = (gate(mathematics), formats(stored), config(knobs));
    let code = code.iter().map(gate_code);
    quote! {
        ::silumin::codegen::spec::Spec {
            name: ::std::borrow::Cow::Borrowed(#name),
            gate: #gate,
            formats: #formats,
            config: #config,
            code: ::std::vec![#(#code),*],
        }
    }
}

/// The expression of type `::silumin::codegen::problem::Shape` whose value is `shape`.
pub(super) fn shape(shape: Shape) -> TokenStream {
    let Shape { m, n, k, groups } = shape;
    let one = quote!(::silumin::codegen::problem::Shape::new(#m, #n, #k));
    match groups {
        Groups::One => one,
        Groups::Batch(count) => quote!(#one.batch(#count)),
        Groups::Rows(count) => quote!(#one.grouped(#count)),
    }
}

/// `::silumin::codegen::MODULE::TYPE::VARIANT` for an enum's value without fields.
fn variant(module: &str, kind: &str, value: &impl Debug) -> TokenStream {
    let [module, kind, value] = [module, kind, &format!("{value:?}")].map(|name| format_ident!("{name}"));
    quote!(::silumin::codegen::#module::#kind::#value)
}

fn formats(formats: &Formats) -> TokenStream {
    let Formats { a, b, c, products } = formats;
    let [a, b] = [a, b].map(|format| variant("problem", "OperandFormat", format));
    let c = variant("problem", "OutputFormat", c);
    let products = match products {
        None => quote!(::std::option::Option::None),
        Some(format @ (ProductFormat::F32 | ProductFormat::Bf16 | ProductFormat::F16)) => {
            let format = variant("problem", "ProductFormat", format);
            quote!(::std::option::Option::Some(#format))
        }
    };
    quote!(::silumin::codegen::problem::Formats { a: #a, b: #b, c: #c, products: #products })
}

fn config(config: &Config) -> TokenStream {
    let Config {
        strategy,
        tile,
        cta_group,
        swap_ab,
        multicast: sharing,
        consumers,
        stages,
        k_order: order,
        sf_preload: preload,
        sf_load,
        accumulators: layout,
        accumulator_buffers,
        a_reuse,
        tmem_columns,
        schedule: work,
        raster: tiles,
        sms,
        cache,
        store,
        pdl,
        promotion,
    } = config;
    let strategy = setting(strategy, |strategy| match strategy {
        Strategy::TwoPass | Strategy::SecondFused | Strategy::Sequential | Strategy::Interleaved => {
            variant("config", "Strategy", strategy)
        }
    });
    let tile =
        setting(tile, |Tile { m, n, k }| quote!(::silumin::codegen::config::Tile { m: #m, n: #n, k: #k }));
    let cta_group = setting(cta_group, |group| match group {
        CtaGroup::One | CtaGroup::Two => variant("config", "CtaGroup", group),
    });
    let [stages, tmem_columns, sms] =
        [stages, tmem_columns, sms].map(|number| setting(number, u32::to_token_stream));
    let accumulator_buffers = setting(accumulator_buffers, |buffers| match buffers {
        Buffers::Whole(buffers) => quote!(::silumin::codegen::config::Buffers::Whole(#buffers)),
        Buffers::Overlapped => variant("config", "Buffers", buffers),
    });
    let consumers = setting(consumers, |consumers| match consumers {
        Consumers::Cooperative | Consumers::PingPong => variant("config", "Consumers", consumers),
    });
    let promotion = setting(promotion, |promotion| match promotion {
        Promotion::Off => variant("config", "Promotion", promotion),
        Promotion::Every(k) => quote!(::silumin::codegen::config::Promotion::Every(#k)),
    });
    let schedule = setting(work, schedule);
    let multicast = multicast(sharing);
    let swap_ab = setting(swap_ab, |switch| match switch {
        Switch::Off | Switch::On => variant("config", "Switch", switch),
    });
    let sf_load = setting(sf_load, |load| match load {
        SfLoad::Bulk | SfLoad::TensorMap | SfLoad::Multicast => variant("config", "SfLoad", load),
    });
    let raster = setting(tiles, raster);
    let pdl = match pdl {
        Switch::Off | Switch::On => variant("config", "Switch", pdl),
    };
    let k_order = setting(order, k_order);
    let sf_preload = sf_preload(preload);
    let accumulators = setting(layout, |layout| match layout {
        Accumulators::Separate | Accumulators::SideBySide => variant("config", "Accumulators", layout),
    });
    let a_reuse = setting(a_reuse, |reuse| match reuse {
        AReuse::None | AReuse::Collector => variant("config", "AReuse", reuse),
    });
    let cache = setting(cache, cache_hints);
    let store = setting(store, |store| match store {
        Store::Direct | Store::Tma => variant("config", "Store", store),
        Store::DirectBy(TmemLoad {
            shape:
                shape @ (TmemShape::S32x32b | TmemShape::S16x256b | TmemShape::S16x128b | TmemShape::S16x64b),
            chunk,
        }) => {
            let shape = variant("config", "TmemShape", shape);
            let chunk = match chunk {
                None => quote!(::std::option::Option::None),
                Some(chunk) => quote!(::std::option::Option::Some(#chunk)),
            };
            quote! {
                ::silumin::codegen::config::Store::DirectBy(
                    ::silumin::codegen::config::TmemLoad { shape: #shape, chunk: #chunk }
                )
            }
        }
    });
    quote! {
        ::silumin::codegen::config::Config {
            strategy: #strategy,
            tile: #tile,
            cta_group: #cta_group,
            swap_ab: #swap_ab,
            multicast: #multicast,
            consumers: #consumers,
            stages: #stages,
            k_order: #k_order,
            sf_preload: #sf_preload,
            sf_load: #sf_load,
            accumulators: #accumulators,
            accumulator_buffers: #accumulator_buffers,
            a_reuse: #a_reuse,
            tmem_columns: #tmem_columns,
            schedule: #schedule,
            raster: #raster,
            sms: #sms,
            cache: #cache,
            store: #store,
            pdl: #pdl,
            promotion: #promotion,
        }
    }
}

fn setting<T>(setting: &Setting<T>, value: impl FnOnce(&T) -> TokenStream) -> TokenStream {
    match setting {
        Setting::Auto => quote!(::silumin::codegen::config::Setting::Auto),
        Setting::Fixed(fixed) => {
            let value = value(fixed);
            quote!(::silumin::codegen::config::Setting::Fixed(#value))
        }
    }
}

fn schedule(schedule: &Schedule) -> TokenStream {
    match schedule {
        Schedule::OneTile | Schedule::Persistent | Schedule::Dynamic | Schedule::StreamK => {
            variant("config", "Schedule", schedule)
        }
        Schedule::SplitK(parts) => quote!(::silumin::codegen::config::Schedule::SplitK(#parts)),
        Schedule::ClusterSplitK(parts) => quote!(::silumin::codegen::config::Schedule::ClusterSplitK(#parts)),
    }
}

fn multicast(multicast: &Multicast) -> TokenStream {
    match multicast {
        Multicast::None => variant("config", "Multicast", multicast),
        Multicast::A(ctas) => quote!(::silumin::codegen::config::Multicast::A(#ctas)),
        Multicast::B(ctas) => quote!(::silumin::codegen::config::Multicast::B(#ctas)),
    }
}

fn raster(raster: &Raster) -> TokenStream {
    match raster {
        Raster::AlongM | Raster::AlongN => variant("config", "Raster", raster),
        Raster::Swizzled(group) => quote!(::silumin::codegen::config::Raster::Swizzled(#group)),
    }
}

fn k_order(order: &KOrder) -> TokenStream {
    match order {
        KOrder::Forward | KOrder::Reverse | KOrder::PingPong => variant("config", "KOrder", order),
        KOrder::SplitTail(tiles) => quote!(::silumin::codegen::config::KOrder::SplitTail(#tiles)),
    }
}

fn sf_preload(preload: &SfPreload) -> TokenStream {
    match preload {
        SfPreload::PerStage | SfPreload::All => variant("config", "SfPreload", preload),
        SfPreload::Ahead(tiles) => quote!(::silumin::codegen::config::SfPreload::Ahead(#tiles)),
    }
}

fn cache_hints(hints: &CacheHints) -> TokenStream {
    let CacheHints { a, b, sf, c } = hints;
    let [a, b, sf, c] = [a, b, sf, c].map(|hint| match hint {
        None => quote!(::std::option::Option::None),
        Some(hint @ (Eviction::Normal | Eviction::First | Eviction::Last)) => {
            let hint = variant("config", "Eviction", hint);
            quote!(::std::option::Option::Some(#hint))
        }
    });
    quote!(::silumin::codegen::config::CacheHints { a: #a, b: #b, sf: #sf, c: #c })
}

fn gate(gate: &Gate) -> TokenStream {
    let Gate { source: GateSource { a, b1, b2 }, expr: mathematics } = gate;
    let expr = expr(mathematics);
    quote! {
        ::silumin::codegen::gate::Gate {
            source: ::silumin::codegen::gate::GateSource {
                a: ::std::string::String::from(#a),
                b1: ::std::string::String::from(#b1),
                b2: ::std::string::String::from(#b2),
            },
            expr: #expr,
        }
    }
}

fn expr(node: &Expr) -> TokenStream {
    let path = quote!(::silumin::codegen::gate::Expr);
    match node {
        Expr::Product(product) => {
            let product = variant("gate", "Product", product);
            quote!(#path::Product(#product))
        }
        Expr::Scalar(name) => quote!(#path::Scalar(::std::string::String::from(#name))),
        Expr::Vector(GateVector { name, axis }) => {
            let axis = variant("gate", "Axis", axis);
            quote! {
                #path::Vector(::silumin::codegen::gate::GateVector {
                    name: ::std::string::String::from(#name),
                    axis: #axis,
                })
            }
        }
        Expr::Literal(number) => {
            // Literal tokens have no sign of their own.
            let sign = number.get().is_sign_negative().then(|| quote!(-));
            let magnitude = number.get().abs();
            quote!(#path::Literal(::silumin::codegen::gate::Number::nearest(#sign #magnitude)))
        }
        Expr::Neg(x) => {
            let x = expr(x);
            quote!(#path::Neg(::std::boxed::Box::new(#x)))
        }
        Expr::Binary(op, x, y) => {
            let (op, x, y) = (variant("gate", "BinaryOp", op), expr(x), expr(y));
            quote!(#path::Binary(#op, ::std::boxed::Box::new(#x), ::std::boxed::Box::new(#y)))
        }
        Expr::Call(function, arguments) => {
            let function = variant("gate", "Function", function);
            let arguments = arguments.iter().map(expr);
            quote!(#path::Call(#function, ::std::vec![#(#arguments),*]))
        }
    }
}

fn gate_code(code: &GateCode) -> TokenStream {
    let GateCode { whole, split } = code;
    let whole = fragment(whole);
    let split = match split {
        None => quote!(::std::option::Option::None),
        Some(SplitCode { early, late, trivial }) => {
            let (early, late) = (fragment(early), fragment(late));
            quote! {
                ::std::option::Option::Some(::silumin::codegen::gate::SplitCode {
                    early: #early,
                    late: #late,
                    trivial: #trivial,
                })
            }
        }
    };
    quote!(::silumin::codegen::gate::GateCode { whole: #whole, split: #split })
}

fn fragment(fragment: &Fragment) -> TokenStream {
    let Fragment { arch, width, inputs, outputs, scalars, vectors, text } = fragment;
    let vectors = vectors.iter().map(|GateVector { name, axis }| {
        let axis = variant("gate", "Axis", axis);
        quote!((#name, #axis))
    });
    quote! {
        ::silumin::codegen::gate::Fragment::from_static(
            #arch,
            #width,
            &[#(#inputs),*],
            &[#(#outputs),*],
            &[#(#scalars),*],
            &[#(#vectors),*],
            #text,
        )
    }
}
