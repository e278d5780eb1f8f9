//! A decoder like Llama's: attention with candle's operations, each layer's MLP with silumin's kernels.
//!
//! ```text
//! cargo run --release --example llama                                       # a small random model, kernels on the emulator
//! cargo run --release --features cuda --example llama -- --cuda 0 --model FOLDER --prompt 128000,9906 --generate 16
//! ```
//!
//! `FOLDER` has `config.json` and safetensors files of a Llama or Mistral model, as Hugging Face has them. Gate, up and down may be
//! in bf16, FP8 or NVFP4; the other weights in bf16, f16 or f32. Prompt and output are numbers of tokens: a tokenizer is
//! another crate's.
//!
//! `--check on` computes each step again with candle's own MLP, from gate, up and down in 16 bits: that is what is done without
//! `--model`. Exit status: 0, 1 if the two differ, 2 for bad input.

use candle_core::safetensors::{MmapedSafetensors, save};
use candle_core::{D, DType, Device, IndexOp, Tensor};
use serde_json::{Value, json};
use silumin::Buckets;
use silumin::runtime::mlp::{MlpError, MlpOptions, MlpWeights};
use silumin::runtime::weights::Checkpoint;
use silumin_candle::{Error, Mlp};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// Norm of the difference of the logits over their norm: x, the middle and the result of each MLP are rounded to bf16.
const BAR: f32 = 2e-2;

struct Options {
    cuda: Option<usize>,
    model: Option<PathBuf>,
    prompt: Vec<u32>,
    generate: usize,
    check: bool,
}

fn options() -> Result<Options, Failure> {
    let mut options =
        Options { cuda: None, model: None, prompt: vec![3, 1, 4, 1, 5], generate: 4, check: true };
    let mut check = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or(format!("{flag} wants a value"))?;
        let wants = |what: &str| format!("{flag} `{value}`: {what} is wanted");
        match flag.as_str() {
            "--cuda" => options.cuda = Some(value.parse().map_err(|_| wants("the number of a GPU"))?),
            "--model" => options.model = Some(value.into()),
            "--prompt" => {
                let tokens = value.split(',').map(|token| token.trim().parse());
                options.prompt =
                    tokens.collect::<Result<_, _>>().map_err(|_| wants("a list such as 3,1,4"))?;
            }
            "--generate" => {
                let count = value.parse().ok().filter(|count| *count > 0);
                options.generate = count.ok_or_else(|| wants("a number from 1 on"))?;
            }
            "--check" if value == "on" || value == "off" => check = Some(value == "on"),
            "--check" => return Err(wants("`on` or `off`").into()),
            _ => {
                return Err(
                    format!("{flag} is none of --cuda, --model, --prompt, --generate, --check").into()
                );
            }
        }
    }
    options.check = check.unwrap_or(options.model.is_none());
    Ok(options)
}

/// What `config.json` says.
struct Config {
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head: usize,
    vocabulary: usize,
    epsilon: f64,
    /// Angles of one position, for half of a head.
    angles: Vec<f32>,
}

impl Config {
    fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let json: Value =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        let size = |name: &str| {
            let missing = || format!("{}: no number `{name}`", path.display());
            json[name].as_u64().map(|size| size as usize).ok_or_else(missing)
        };
        // Others have biases, norms of heads or other activations.
        if let Some(other) = json["model_type"].as_str().filter(|name| !["llama", "mistral"].contains(name)) {
            return Err(format!(
                "{}: model_type `{other}`, but this is for llama and mistral",
                path.display()
            )
            .into());
        }
        if ["attention_bias", "mlp_bias"].iter().any(|name| json[*name] == true) {
            return Err(format!("{}: this is for models without biases", path.display()).into());
        }
        if let Some(other) = json["hidden_act"].as_str().filter(|name| *name != "silu") {
            return Err(format!("{}: hidden_act `{other}`, but this is for silu", path.display()).into());
        }
        let (hidden, heads) = (size("hidden_size")?, size("num_attention_heads")?);
        let kv_heads = size("num_key_value_heads").unwrap_or(heads);
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            let place = path.display();
            return Err(format!("{place}: {heads} heads are no multiple of {kv_heads} heads of keys").into());
        }
        // Newer files have both in `rope_parameters`.
        let newer = json["rope_parameters"].is_object();
        let rope = if newer { &json["rope_parameters"] } else { &json };
        let scaling = if newer { rope } else { &json["rope_scaling"] };
        let head = size("head_dim").unwrap_or(hidden / heads.max(1));
        let theta = rope["rope_theta"].as_f64().unwrap_or(10_000.0);
        let angles = (0..head / 2).map(|i| theta.powf(-2.0 * i as f64 / head as f64));
        let angles = angles.map(|angle| scaled(angle, scaling).map(|angle| angle as f32));
        Ok(Config {
            layers: size("num_hidden_layers")?,
            heads,
            kv_heads,
            head,
            vocabulary: size("vocab_size")?,
            epsilon: json["rms_norm_eps"].as_f64().unwrap_or(1e-5),
            angles: angles.collect::<Result<_, _>>()?,
        })
    }
}

/// An angle of rotary positions as Llama 3.1 scales it: those that turn seldom in the original context turn slower.
fn scaled(angle: f64, scaling: &Value) -> Result<f64, Failure> {
    if scaling.is_null() || scaling["rope_type"] == "default" {
        return Ok(angle);
    }
    let number = |name: &str| scaling[name].as_f64().ok_or(format!("rope_scaling: no number `{name}`"));
    if scaling["rope_type"] != "llama3" {
        return Err(format!("rope_scaling: {scaling}, but only the type llama3 is known here").into());
    }
    let (factor, context) = (number("factor")?, number("original_max_position_embeddings")?);
    let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
    let turns = context * angle / std::f64::consts::TAU;
    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
    Ok(angle * (kept + (1.0 - kept) / factor))
}

/// Writes a model of random weights.
fn write_random(folder: &Path) -> Result<(), Failure> {
    let (hidden, features, vocabulary, heads, kv_heads, layers) = (64, 128, 96, 4, 2, 2);
    let config = json!({
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers, "vocab_size": vocabulary,
    });
    fs::create_dir_all(folder)?;
    fs::write(folder.join("config.json"), config.to_string())?;
    let mut tensors = HashMap::new();
    let mut state = 1u64;
    // The same numbers every time, of variance 1.
    let mut number = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((state >> 40) as f32 / (1u32 << 24) as f32 - 0.5) * 12f32.sqrt()
    };
    let mut add = |name: String, rows: usize, k: usize| -> Result<(), Failure> {
        let numbers: Vec<f32> = (0..rows * k).map(|_| number() / (k as f32).sqrt()).collect();
        let random = Tensor::from_vec(numbers, (rows, k), &Device::Cpu)?;
        tensors.insert(name, random.to_dtype(DType::BF16)?);
        Ok(())
    };
    add("model.embed_tokens.weight".into(), vocabulary, hidden)?;
    let kv = hidden / heads * kv_heads;
    for layer in 0..layers {
        for (name, rows, k) in [
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", features, hidden),
            ("mlp.up_proj", features, hidden),
            ("mlp.down_proj", hidden, features),
        ] {
            add(format!("model.layers.{layer}.{name}.weight"), rows, k)?;
        }
    }
    let ones = Tensor::ones(hidden, DType::BF16, &Device::Cpu)?;
    for layer in 0..layers {
        for name in ["input_layernorm", "post_attention_layernorm"] {
            tensors.insert(format!("model.layers.{layer}.{name}.weight"), ones.clone());
        }
    }
    tensors.insert("model.norm.weight".into(), ones);
    Ok(save(&tensors, folder.join("model.safetensors"))?)
}

/// Whose MLPs a step uses.
#[derive(Clone, Copy, PartialEq)]
enum Whose {
    Silumin,
    Candle,
}

struct Layer {
    attention_norm: Tensor,
    mlp_norm: Tensor,
    /// q, k, v and o.
    projections: [Tensor; 4],
    mlp: Mlp,
    /// Gate, up and down of candle's MLP, if there is a check.
    candle: Option<[Tensor; 3]>,
}

struct Model {
    config: Config,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    device: Device,
}

/// Keys and values of the tokens so far, `[kv_heads, tokens, head]` for each layer.
type Seen = Vec<Option<(Tensor, Tensor)>>;

impl Model {
    /// Loads all weights; the MLPs' kernels are for up to `tokens` tokens at a time.
    fn load(folder: &Path, device: &Device, tokens: u32, check: bool) -> Result<Self, Failure> {
        let config = Config::read(&folder.join("config.json"))?;
        let checkpoint = Checkpoint::open(folder)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            files.extend(path.extension().is_some_and(|end| end == "safetensors").then_some(path));
        }
        // SAFETY: a model's files do not change while they are read.
        let weights = unsafe { MmapedSafetensors::multi(&files)? };
        // candle's kernels for the CPU are at their best in f32.
        let dtype = if device.is_cuda() { DType::BF16 } else { DType::F32 };
        let get = |name: &str| -> Result<Tensor, Failure> {
            let tensor = weights.load(&format!("{name}.weight"), device)?;
            match tensor.dtype() {
                DType::BF16 | DType::F16 | DType::F32 => Ok(tensor.to_dtype(dtype)?),
                other => {
                    Err(format!("{name}.weight: {other:?}, but only gate, up and down may be quantised")
                        .into())
                }
            }
        };
        let buckets = Buckets::powers_of_two(tokens);
        // Further layers share the first one's kernels and the memory between them.
        let mut first: Option<Mlp> = None;
        let layer = |number: usize| -> Result<Layer, Failure> {
            let name = |part: &str| format!("model.layers.{number}.{part}");
            let part = |part: &str| get(&name(part));
            let weights = MlpWeights::of_layer(&checkpoint, &name("mlp"))?;
            let alone = || Mlp::of(&weights).options(MlpOptions::new(buckets.clone())).load(device);
            let mlp = match &first {
                Some(first) => match first.load_layer(&weights) {
                    // Some checkpoints leave layers in 16 bits, or calibrate a part of them.
                    Err(Error::Block(error)) if matches!(*error, MlpError::UnlikeLayer { .. }) => alone()?,
                    loaded => loaded?,
                },
                None => alone()?,
            };
            first.get_or_insert_with(|| mlp.clone());
            let candle = match check {
                true => Some([part("mlp.gate_proj")?, part("mlp.up_proj")?, part("mlp.down_proj")?]),
                false => None,
            };
            Ok(Layer {
                attention_norm: part("input_layernorm")?,
                mlp_norm: part("post_attention_layernorm")?,
                projections: [
                    part("self_attn.q_proj")?,
                    part("self_attn.k_proj")?,
                    part("self_attn.v_proj")?,
                    part("self_attn.o_proj")?,
                ],
                mlp,
                candle,
            })
        };
        let embedding = get("model.embed_tokens")?;
        Ok(Model {
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            norm: get("model.norm")?,
            // Some models have one matrix for both ends.
            head: if weights.get("lm_head.weight").is_ok() { get("lm_head")? } else { embedding.clone() },
            embedding,
            config,
            device: device.clone(),
        })
    }

    /// x over its root mean square, in f32, times the weights.
    fn normed(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor, Failure> {
        let wide = x.to_dtype(DType::F32)?;
        let mean = (wide.sqr()?.mean_keepdim(D::Minus1)? + self.config.epsilon)?;
        let normed = wide.broadcast_div(&mean.sqrt()?)?.to_dtype(x.dtype())?;
        Ok(normed.broadcast_mul(weight)?)
    }

    /// Rotary positions of `[heads, tokens, head]`, the first half of each head with the second.
    fn rotated(&self, x: &Tensor, first: usize) -> Result<Tensor, Failure> {
        let (_, tokens, head) = x.dims3()?;
        let half = head / 2;
        let angles = Tensor::from_slice(&self.config.angles, (1, half), &self.device)?;
        let position = Tensor::arange(first as u32, (first + tokens) as u32, &self.device)?;
        let angle = position.to_dtype(DType::F32)?.reshape((tokens, 1))?.broadcast_mul(&angles)?;
        let (cos, sin) = (angle.cos()?.to_dtype(x.dtype())?, angle.sin()?.to_dtype(x.dtype())?);
        let (low, high) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
        let turned_low = (low.broadcast_mul(&cos)? - high.broadcast_mul(&sin)?)?;
        let turned_high = (high.broadcast_mul(&cos)? + low.broadcast_mul(&sin)?)?;
        Ok(Tensor::cat(&[turned_low, turned_high], 2)?)
    }

    fn attention(
        &self,
        layer: &Layer,
        x: &Tensor,
        seen: &mut Option<(Tensor, Tensor)>,
        first: usize,
    ) -> Result<Tensor, Failure> {
        let Config { heads, kv_heads, head, .. } = self.config;
        let tokens = x.dim(0)?;
        let [q, k, v, o] = &layer.projections;
        let split = |weight: &Tensor, heads: usize| -> Result<Tensor, Failure> {
            Ok(x.matmul(&weight.t()?)?.reshape((tokens, heads, head))?.transpose(0, 1)?.contiguous()?)
        };
        let q = self.rotated(&split(q, heads)?, first)?;
        let (mut k, mut v) = (self.rotated(&split(k, kv_heads)?, first)?, split(v, kv_heads)?);
        if let Some((keys, values)) = seen {
            (k, v) = (Tensor::cat(&[&*keys, &k], 1)?, Tensor::cat(&[&*values, &v], 1)?);
        }
        *seen = Some((k.clone(), v.clone()));
        // Each key and value is for several heads.
        let all = first + tokens;
        let wide = |x: &Tensor| -> Result<Tensor, Failure> {
            let shared = x.unsqueeze(1)?.broadcast_as((kv_heads, heads / kv_heads, all, head))?;
            Ok(shared.reshape((heads, all, head))?)
        };
        let scores = (q.matmul(&wide(&k)?.transpose(1, 2)?.contiguous()?)? / (head as f64).sqrt())?;
        // A token sees those before it and itself.
        let hidden = (0..tokens)
            .flat_map(|i| (0..all).map(move |j| if j > first + i { f32::NEG_INFINITY } else { 0.0 }));
        let mask = Tensor::from_vec(hidden.collect::<Vec<f32>>(), (tokens, all), &self.device)?;
        let scores = scores.to_dtype(DType::F32)?.broadcast_add(&mask)?;
        let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?.to_dtype(x.dtype())?;
        let mixed = weights.matmul(&wide(&v)?)?.transpose(0, 1)?.reshape((tokens, heads * head))?;
        Ok(mixed.matmul(&o.t()?)?)
    }

    /// `mlp(normed(h)) + h`.
    fn mlp(&self, layer: &Layer, h: &Tensor, whose: Whose) -> Result<Tensor, Failure> {
        let x = self.normed(h, &layer.mlp_norm)?;
        match (whose, &layer.candle) {
            (Whose::Candle, Some([gate, up, down])) => {
                let middle = (x.matmul(&gate.t()?)?.silu()? * x.matmul(&up.t()?)?)?;
                Ok((middle.matmul(&down.t()?)? + h)?)
            }
            (Whose::Candle, None) => Err("this model was loaded without candle's MLPs".into()),
            (Whose::Silumin, _) => {
                let [x, h] = [x, h.clone()].map(|tensor| tensor.to_dtype(DType::BF16));
                Ok(layer.mlp.run_adding(&x?, &h?)?.to_dtype(self.embedding.dtype())?)
            }
        }
    }

    /// Logits in f32 of the token after the last.
    fn step(&self, tokens: &[u32], seen: &mut Seen, whose: Whose) -> Result<Tensor, Failure> {
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.config.vocabulary) {
            return Err(format!("token {token}: the vocabulary has {}", self.config.vocabulary).into());
        }
        seen.resize(self.layers.len(), None);
        let first = seen.first().and_then(Option::as_ref).map_or(Ok(0), |(keys, _)| keys.dim(1))?;
        let mut h = self.embedding.index_select(&Tensor::new(tokens, &self.device)?, 0)?;
        for (layer, seen) in self.layers.iter().zip(seen) {
            let x = self.normed(&h, &layer.attention_norm)?;
            h = (self.attention(layer, &x, seen, first)? + &h)?;
            h = self.mlp(layer, &h, whose)?;
        }
        let last = self.normed(&h.narrow(0, tokens.len() - 1, 1)?, &self.norm)?;
        Ok(last.matmul(&self.head.t()?)?.to_dtype(DType::F32)?.i(0)?)
    }
}

fn run() -> Result<bool, Failure> {
    let Options { cuda, model, prompt, generate, check } = options()?;
    let device = cuda.map_or(Ok(Device::Cpu), Device::new_cuda)?;
    let random = std::env::temp_dir().join(format!("silumin-llama-{}", std::process::id()));
    let folder = model.as_deref().unwrap_or(&random);
    if model.is_none() {
        write_random(folder)?;
    }
    let loaded = Model::load(folder, &device, prompt.len() as u32, check);
    if model.is_none() {
        // On the CPU and on CUDA the weights were copied.
        fs::remove_dir_all(folder)?;
    }
    let loaded = loaded?;
    let (mut seen, mut checked) = (Seen::new(), Seen::new());
    let (mut next, mut said, mut worst) = (prompt, Vec::new(), 0.0f32);
    let mut taken = Duration::ZERO;
    for _ in 0..generate {
        let start = Instant::now();
        let logits = loaded.step(&next, &mut seen, Whose::Silumin)?;
        let token = logits.argmax(0)?.to_scalar::<u32>()?;
        taken += start.elapsed();
        if check {
            let expected = loaded.step(&next, &mut checked, Whose::Candle)?;
            let norm = |x: &Tensor| x.sqr()?.sum_all()?.to_scalar::<f32>();
            let off = (norm(&(&logits - &expected)?)? / norm(&expected)?).sqrt();
            // A NaN is no small difference: `f32::max` would drop it.
            worst = if off.is_nan() { f32::INFINITY } else { worst.max(off) };
        }
        said.push(token);
        next = vec![token];
    }
    println!(
        "{said:?}, {:.1} tokens per second, the prompt's time included",
        said.len() as f64 / taken.as_secs_f64()
    );
    if check {
        println!(
            "logits differ from those with candle's MLPs by {worst:.1e} of their norm; the bar is {BAR:.0e}"
        );
    }
    Ok(!check || worst < BAR)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
