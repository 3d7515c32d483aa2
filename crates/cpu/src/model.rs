//! The model's forward pass: embedding, layers, head.

use lily_backend::MemoryPlan;
use lily_checkpoint::{Config, GROUP, Matrices, Mixer as MixerWeights, Weights};
use rayon::prelude::*;

use crate::activations::{Activations, Planes};
use crate::attention::Attention;
use crate::delta_net::DeltaNet;
use crate::embedding::embed;
use crate::matmul::{Product, matmul};
use crate::moe::{Moe, MoeWorkspace};
use crate::norm::rms_norm;
use crate::rope::Rope;
use crate::simd::Simd;
use crate::state::{Layout, State};
use crate::step::{Run, Step};
use crate::workspace::{Arena, Scratch};

/// Rows of a step beyond one for each sequence; longer segments take several steps.
pub(crate) const MAX_ROWS: usize = 512;

/// The model: `x = embed(tokens); for each layer: x += mixer(norm(x)); x += moe(norm(x)); logits = lm_head(norm(x))`.
pub(crate) struct Model {
    hidden: usize,
    vocab: usize,
    epsilon: f32,
    embed_tokens: Matrices,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    lm_head: Matrices,
}

struct Layer {
    input_norm: Vec<f32>,
    mixer: Mixer,
    moe_norm: Vec<f32>,
    moe: Moe,
}

/// DeltaNet with its number among the layers of its kind; attention knows its own.
enum Mixer {
    DeltaNet(usize, DeltaNet),
    Attention(Attention),
}

/// Some tokens of one sequence.
pub(crate) struct Chunk<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) tokens: &'a [u32],
    pub(crate) logits: Logits<'a>,
}

/// Which of a chunk's rows give logits.
pub(crate) enum Logits<'a> {
    None,
    /// The last one.
    Last,
    /// All, and here: `[rows, vocab]`.
    All(&'a mut [f32]),
}

/// A step on its way through the layers: what lasts from one to the next. Its memory is kept for the step after it.
pub(crate) struct Pass {
    /// The residual stream, its norm, and what a mixer adds: `[rows, hidden]` each.
    stream: Arena,
    tokens: Vec<u32>,
    step: Step,
    /// Layers that are done.
    done: usize,
}

impl Pass {
    pub(crate) fn new(simd: Simd, config: &Config) -> Self {
        let rope = Rope::new(config.attention.rotary_dims, config.attention.rope_theta);
        let step = Step { simd, rows: 0, runs: Vec::new(), rope };
        Self { stream: Arena::default(), tokens: Vec::new(), step, done: 0 }
    }
}

/// What a layer works in. Nothing in it lasts from one layer to the next.
pub(crate) struct Workspace {
    normed: Activations,
    scratch: Scratch,
    moe: MoeWorkspace,
    /// What `lm_head` multiplies.
    last: Activations,
    /// Of the chunks that gave those of their last row.
    logits: Arena,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Self {
            normed: Activations::new(),
            scratch: Scratch::new(),
            moe: MoeWorkspace::new(),
            last: Activations::new(),
            logits: Arena::default(),
        }
    }
}

impl Model {
    pub(crate) fn new(config: &Config, weights: Weights) -> Self {
        let (mut delta_net_layers, mut attention_layers) = (0, 0);
        let mut layers = Vec::with_capacity(weights.layers.len());
        for layer in weights.layers {
            let mixer = match layer.mixer {
                MixerWeights::DeltaNet(weights) => {
                    delta_net_layers += 1;
                    Mixer::DeltaNet(delta_net_layers - 1, DeltaNet::new(config, weights))
                }
                MixerWeights::Attention(weights) => {
                    attention_layers += 1;
                    Mixer::Attention(Attention::new(config, weights, attention_layers - 1))
                }
            };
            layers.push(Layer {
                input_norm: layer.input_layernorm,
                mixer,
                moe_norm: layer.post_attention_layernorm,
                moe: Moe::new(config.hidden_size, &config.moe, layer.moe),
            });
        }
        Self {
            hidden: config.hidden_size,
            vocab: config.vocab_size,
            epsilon: config.rms_norm_eps,
            embed_tokens: weights.embed_tokens,
            layers,
            norm: weights.norm,
            lm_head: weights.lm_head,
        }
    }

    /// Begins a step that appends each chunk's tokens to its state. Ids are below the vocabulary, no chunk is empty, and
    /// the states have room ([`State::reserve`]).
    pub(crate) fn begin(&self, pass: &mut Pass, chunks: &[Chunk<'_>]) {
        let Pass { stream, tokens, step, done } = pass;
        tokens.clear();
        step.runs.clear();
        for chunk in chunks {
            let position = chunk.state.length;
            step.runs.push(Run { first_row: tokens.len(), rows: chunk.tokens.len(), position });
            tokens.extend_from_slice(chunk.tokens);
        }
        step.rows = tokens.len();
        step.rope.set(step.runs.iter().flat_map(|run| run.position..run.position + run.rows));
        let [x] = stream.carve(step.rows, [self.hidden]);
        embed(self.embed_tokens.get(0), tokens, x);
        *done = 0;
    }

    /// Takes a step through layers, one at least, until it is through or `pause` says so; false if it is not through.
    /// The chunks are those that it began with.
    pub(crate) fn advance(
        &self,
        workspace: &mut Workspace,
        pass: &mut Pass,
        chunks: &mut [Chunk<'_>],
        pause: &dyn Fn() -> bool,
    ) -> bool {
        let Workspace { normed, scratch, moe, .. } = workspace;
        let Pass { stream, step, done, .. } = pass;
        let (simd, rows) = (step.simd, step.rows);
        let [x, norm, mixed] = stream.carve(rows, [self.hidden; 3]);
        for layer in &self.layers[*done..] {
            rms_norm(simd, x, &layer.input_norm, self.epsilon, norm);
            normed.set(simd, norm, rows, self.hidden, Planes::One);
            match &layer.mixer {
                Mixer::DeltaNet(index, mixer) => {
                    let mut states: Vec<_> =
                        chunks.iter_mut().map(|chunk| &mut chunk.state.recurrent[*index]).collect();
                    mixer.forward(step, normed, &mut states, scratch, mixed);
                }
                Mixer::Attention(mixer) => {
                    let mut states: Vec<_> = chunks.iter_mut().map(|chunk| &mut *chunk.state).collect();
                    mixer.forward(step, normed, &mut states, scratch, mixed);
                }
            }
            add(x, mixed);
            rms_norm(simd, x, &layer.moe_norm, self.epsilon, norm);
            normed.set(simd, norm, rows, self.hidden, Planes::One);
            layer.moe.forward(step, normed, &mut scratch.part, moe, x);
            *done += 1;
            if *done < self.layers.len() && pause() {
                return false;
            }
        }
        true
    }

    /// Ends a step that is through; gives the logits of the chunks that want those of their last row, `[such chunks,
    /// vocab]`.
    pub(crate) fn finish<'w>(
        &self,
        workspace: &'w mut Workspace,
        pass: &mut Pass,
        chunks: &mut [Chunk<'_>],
    ) -> &'w [f32] {
        let Workspace { last, logits, .. } = workspace;
        let Pass { stream, step, .. } = pass;
        for chunk in &mut *chunks {
            chunk.state.length += chunk.tokens.len();
        }
        let [x, norm] = stream.carve(step.rows, [self.hidden; 2]);
        let wanted = rows_with_logits(&step.runs, chunks);
        let norm = &mut norm[..wanted.len() * self.hidden];
        for (row, norm) in wanted.iter().zip(norm.chunks_exact_mut(self.hidden)) {
            rms_norm(step.simd, &x[row * self.hidden..][..self.hidden], &self.norm, self.epsilon, norm);
        }
        last.set(step.simd, norm, wanted.len(), self.hidden, Planes::Two);
        self.head(step.simd, last, chunks, logits)
    }

    /// `lm_head`. The last rows of chunks are one product, so that its weights are read once for all sequences.
    fn head<'w>(&self, simd: Simd, input: &Activations, chunks: &mut [Chunk<'_>], logits: &'w mut Arena) -> &'w [f32] {
        let places: Vec<u32> = (0..input.rows() as u32).collect();
        let lasts = chunks.iter().filter(|chunk| matches!(chunk.logits, Logits::Last)).count();
        let [logits] = logits.carve(lasts, [self.vocab]);
        let weight = self.lm_head.get(0);
        let (rows, mut places) = places.split_at(lasts);
        let mut products = vec![Product { weight, input, rows: Some(rows), out: logits }];
        for chunk in chunks {
            if let Logits::All(out) = &mut chunk.logits {
                let (rows, rest) = places.split_at(chunk.tokens.len());
                products.push(Product { weight, input, rows: Some(rows), out });
                places = rest;
            }
        }
        matmul(simd, &mut products);
        drop(products);
        logits
    }
}

/// The rows that give logits: first the last ones of chunks that want only those, then all rows of the others.
fn rows_with_logits(runs: &[Run], chunks: &[Chunk<'_>]) -> Vec<usize> {
    let mut rows = Vec::new();
    for (run, chunk) in runs.iter().zip(chunks) {
        if let Logits::Last = chunk.logits {
            rows.push(run.first_row + run.rows - 1);
        }
    }
    for (run, chunk) in runs.iter().zip(chunks) {
        if let Logits::All(_) = chunk.logits {
            rows.extend(run.first_row..run.first_row + run.rows);
        }
    }
    rows
}

/// `x += y`.
fn add(x: &mut [f32], y: &[f32]) {
    const VALUES_PER_TASK: usize = 1 << 14;
    let pieces = x.par_chunks_mut(VALUES_PER_TASK).zip(y.par_chunks(VALUES_PER_TASK));
    pieces.for_each(|(x, y)| x.iter_mut().zip(y).for_each(|(x, y)| *x += y));
}

/// What a model holds in memory; see [`crate::CpuBackend::plan`].
pub(crate) fn plan(config: &Config, weights: u64, context: usize, parallel: usize) -> MemoryPlan {
    let layout = Layout::new(config);
    let (hidden, rows) = (config.hidden_size, MAX_ROWS + parallel);
    let delta_net = DeltaNet::widths(&config.delta_net);
    let attention = Attention::widths(&config.attention);
    let moe = Moe::widths(hidden, &config.moe);
    let part = delta_net.iter().sum::<usize>().max(attention.iter().sum()).max(moe.iter().sum());
    // fp32, an int8 plane or two, and two fp32 numbers for each group of a plane.
    let activations = |width: usize, planes: usize| width * 4 + planes * (width + width / GROUP * 8);
    let inner = delta_net[delta_net.len() - 1].max(attention[attention.len() - 1]);
    let routed = config.moe.experts_per_token * config.moe.expert_width;
    // Two streams of three: a call that is paused keeps its own.
    let per_row = (2 * 3 * hidden + part) * 4
        + activations(hidden, 1)
        + activations(inner, 1)
        + activations(routed, 2)
        + activations(config.moe.shared_expert_width, 2);
    let per_sequence =
        (Attention::partials(&config.attention, context) + config.vocab_size) * 4 + activations(hidden, 2);
    MemoryPlan {
        context,
        parallel,
        weights,
        workspace: (rows * per_row + parallel * per_sequence) as u64,
        state: layout.recurrent_bytes(),
        kv_per_token: layout.kv_bytes_per_token(),
        cache: 0,
    }
}
