//! The table of knobs: every value of every knob is read back from each of its forms, and works on the chips that its row names.

use proc_macro2::TokenStream;
use quote::ToTokens;
use silumin_codegen::arch::{Arch, TensorCore};
use silumin_codegen::config::{Config, KNOBS, Knob, Strategy};
use silumin_codegen::dsl::{Input, parse};
use silumin_codegen::plan::validate;
use silumin_codegen::problem::{Formats, OperandFormat, Operation, OutputFormat, Problem, Shape};
use syn::parse::{ParseStream, Parser};

const CHIPS: [Arch; 3] = [Arch::Sm90a, Arch::Sm100a, Arch::Sm120a];

/// Every value that the table draws, each once.
fn values() -> Vec<(&'static Knob, &'static str)> {
    let mut all = Vec::new();
    for knob in &KNOBS {
        for core in CHIPS.map(Arch::tensor_core) {
            let rare = knob.rare_draws(core).into_iter().chain(knob.foreign_draws(core));
            all.extend(
                knob.draws(core)
                    .into_iter()
                    .chain(rare)
                    .chain(knob.candidates(core))
                    .map(|text| (knob, text)),
            );
        }
        all.extend(knob.has_auto.then_some((knob, "auto")));
    }
    all.sort_by_key(|(knob, text)| (knob.name, *text));
    all.dedup();
    all
}

fn with(knob: &Knob, text: &str) -> Config {
    let mut config = Config::default();
    config.set(knob.name, text).unwrap();
    config
}

#[test]
fn every_row_says_what_it_means_and_draws_values_of_its_own() {
    for knob in &KNOBS {
        assert!(knob.brief().len() > 10 && knob.about.trim().ends_with('.'), "{}", knob.name);
        for value in knob.values {
            assert!(value.about.trim().ends_with('.'), "{}: {}", knob.name, value.spelling);
            assert!(knob.help().contains(value.about.trim()), "{}", knob.name);
            let of_gemms = value.spelling == Strategy::Single.to_string();
            assert!(
                of_gemms || !value.samples.on.is_empty(),
                "{}: {} works nowhere",
                knob.name,
                value.spelling
            );
            let alone = Knob { values: std::slice::from_ref(value), has_auto: false, ..*knob };
            for core in value.samples.on {
                let drawn = [alone.draws(*core), alone.rare_draws(*core)].concat();
                assert!(!drawn.is_empty());
                for text in drawn {
                    let known = value.spelling.split('(').next().unwrap();
                    // Numbers and lists are spelt by example.
                    let word = known.starts_with(|first: char| first.is_ascii_lowercase());
                    assert!(!word || text.starts_with(known), "{}: {text} is drawn for {known}", knob.name);
                }
            }
        }
    }
}

#[test]
fn every_value_is_read_back_from_text_serde_and_tokens() {
    for (knob, text) in values() {
        let about = format!("{} = {text}", knob.name);
        let config = with(knob, text);
        let printed = config.entries().into_iter().find(|(name, _)| *name == knob.name).unwrap().1;
        assert_eq!(printed, text, "{about}");
        assert!(config != Config::default() || with(knob, &printed) == Config::default(), "{about}");
        assert_eq!(with(knob, &printed), config, "{about}");

        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), config, "{about}");
        let toml = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<Config>(&toml).unwrap(), config, "{about}");

        // The expression is what `Debug` prints, with whole paths and typed numbers.
        let expression = squeezed(&config.to_token_stream());
        let debugged = squeezed(&format!("{config:?}").parse().unwrap());
        assert_eq!(expression, debugged, "{about}");
        assert!(expression.starts_with("Config{strategy:"), "{expression}");
    }
}

/// Tokens without paths, types of numbers and last commas.
fn squeezed(tokens: &TokenStream) -> String {
    let text = tokens.to_string().replace(' ', "");
    let mut out = String::new();
    for part in text.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
        let (word, end) = match part.char_indices().last() {
            Some((at, c)) if !(c.is_alphanumeric() || c == '_' || c == ':') => part.split_at(at),
            _ => (part, ""),
        };
        // `field:::silumin::Type::Value` keeps its field.
        let (field, value) = match word.split_once(':') {
            Some((field, value)) if !value.starts_with(':') || value.starts_with("::") => {
                (format!("{field}:"), value)
            }
            _ => (String::new(), word),
        };
        let value = value.rsplit("::").next().unwrap_or(value);
        out.push_str(&field);
        out.push_str(value.strip_suffix("u32").unwrap_or(value));
        out.push_str(end);
    }
    out.replace(",}", "}")
}

#[test]
fn old_spellings_are_read_and_the_new_ones_printed() {
    let mut old = 0;
    for knob in &KNOBS {
        for value in knob.values {
            assert_eq!(knob.note(value.spelling), None);
            let Some(formerly) = value.samples.formerly else { continue };
            assert_eq!(with(knob, formerly), with(knob, value.spelling));
            assert!(knob.note(formerly).is_some_and(|note| note.contains(value.spelling)));
            let toml = format!("{} = {formerly:?}", knob.name);
            assert_eq!(toml::from_str::<Config>(&toml).unwrap(), with(knob, value.spelling));
            old += 1;
        }
    }
    assert!(old > 0);
    // The word has another meaning beside the old one.
    for (name, printed) in [("k_order", "serpentine"), ("consumers", "ping_pong")] {
        let entries = with(Knob::named(name).unwrap(), "ping_pong").entries();
        assert!(entries.iter().any(|(knob, value)| *knob == name && value == printed), "{entries:?}");
    }
}

#[test]
fn every_value_is_read_in_the_brackets() {
    for knob in &KNOBS {
        let mut taken = 0;
        for (_, text) in values().into_iter().filter(|(other, _)| *other == knob) {
            let declared = format!("<{} = {text}> silu(A @ B1) * (A @ B2)", knob.name);
            let read = |input: ParseStream| parse(Operation::DualGemm, input);
            match read.parse2(declared.parse().unwrap()) {
                Ok(Input::Expression(declaration)) => {
                    assert_eq!(declaration.spec.config, with(knob, text), "{declared}");
                    taken += 1;
                }
                Ok(Input::Items(_)) => panic!("{declared}: an item"),
                // It may be illegal alone, but it was understood.
                Err(error) => assert!(!error.to_string().contains("is not a value"), "{declared}: {error}"),
            }
        }
        assert!(taken > 0 || knob.name == "promotion", "no value of {} is taken alone", knob.name);
    }
}

/// Whether the chip multiplies the formats, with all knobs left to it.
fn legal(formats: Formats, arch: Arch) -> bool {
    validate(&Problem::dual(Shape::new(1024, 2048, 4096), formats), &Config::default(), arch).is_ok()
}

/// Problems and what stands beside a knob, one of which any value that a chip honours goes with.
fn surroundings(arch: Arch) -> Vec<(Problem, Config)> {
    use OperandFormat::{Bf16, E4m3, Nvfp4};
    let formats = [(Nvfp4, Nvfp4), (Bf16, Bf16), (E4m3, E4m3), (Bf16, Nvfp4)]
        .map(|(a, b)| Formats::new(a, b, OutputFormat::Bf16));
    let beside = match arch.tensor_core() {
        TensorCore::Tcgen05 => [
            "",
            "tile=[128, 64, 256]",
            "tile=[64, 128, 128];swap_ab=on",
            "multicast=a(2)",
            "sms=2;tile=[128, 128, 256]",
        ],
        TensorCore::Wgmma => ["", "tile=[128, 64, 64]", "tile=[64, 64, 64]", "tile=[128, 64, 128]", "sms=2"],
        TensorCore::Mma => ["", "tile=[128, 64, 64]", "tile=[64, 64, 64]", "tile=[64, 32, 128]", "sms=2"],
    };
    let mut all = Vec::new();
    for formats in formats.into_iter().filter(|formats| legal(*formats, arch)) {
        for shape in [Shape::new(1024, 2048, 4096), Shape::new(64, 2048, 4096)] {
            for knobs in beside {
                let mut config = Config::default();
                for pair in knobs.split(';').filter(|pair| !pair.is_empty()) {
                    let (name, value) = pair.split_once('=').unwrap();
                    config.set(name, value).unwrap();
                }
                all.push((Problem::dual(shape, formats), config));
            }
        }
    }
    all
}

#[test]
fn values_work_on_the_chips_of_their_rows_and_are_refused_on_others() {
    for arch in CHIPS {
        let core = arch.tensor_core();
        let surroundings = surroundings(arch);
        let answers = |knob: &Knob, text: &str| {
            let knob = *knob;
            let text = text.to_owned();
            surroundings
                .iter()
                .map(move |(problem, config)| {
                    let mut config = *config;
                    config.set(knob.name, &text).unwrap();
                    validate(problem, &config, arch).map(drop)
                })
                .collect::<Vec<_>>()
        };
        for knob in &KNOBS {
            for value in knob.values {
                let alone = Knob { values: std::slice::from_ref(value), has_auto: false, ..*knob };
                let honoured = [alone.draws(core), alone.rare_draws(core)].concat();
                let legal = honoured.iter().any(|text| answers(knob, text).iter().any(Result::is_ok));
                assert!(
                    honoured.is_empty() || legal,
                    "{arch}: {} = {} is legal nowhere",
                    knob.name,
                    value.spelling
                );
            }
            for text in knob.foreign_draws(core) {
                for answer in answers(knob, text) {
                    let Err(errors) = answer else { panic!("{arch}: {} = {text} is taken", knob.name) };
                    assert!(
                        errors.iter().any(|error| error.knob() == knob.name),
                        "{arch}: {} = {text}: {errors:?}",
                        knob.name
                    );
                }
            }
        }
    }
}
