//! The model once more, from the CPU backend's functions, which round what 4-bit weights meet to 15 bits where that backend
//! itself mostly takes 8: slow, for a few tokens, and nearer to the truth than either backend.

use half::f16;
use lily_checkpoint::{Attention, Checkpoint, Config, DeltaNet, Experts, Matrix, Mixer, Moe};
use lily_cpu::functions as f;

/// The logits of every position of one sequence.
pub(crate) fn logits(checkpoint: &Checkpoint, tokens: &[u32]) -> Vec<f32> {
    let (config, weights) = (&checkpoint.config, &checkpoint.weights);
    let mut x = f::embed(weights.embed_tokens.get(0), tokens);
    for layer in &weights.layers {
        let normed = f::rms_norm(&x, &layer.input_layernorm, config.rms_norm_eps);
        let mixed = match &layer.mixer {
            Mixer::DeltaNet(mixer) => delta_net(config, mixer, &normed),
            Mixer::Attention(mixer) => attention(config, mixer, &normed),
        };
        add(&mut x, &mixed, 1.0);
        let normed = f::rms_norm(&x, &layer.post_attention_layernorm, config.rms_norm_eps);
        for (x, row) in x.chunks_mut(config.hidden_size).zip(normed.chunks(config.hidden_size)) {
            moe(config, &layer.moe, row, x);
        }
    }
    product(weights.lm_head.get(0), &f::rms_norm(&x, &weights.norm, config.rms_norm_eps))
}

/// As the function, on all cores: rows of the weight are divided among threads.
fn product(weight: Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let (rows, inputs) = (weight.rows, x.len() / weight.cols);
    let share = rows.div_ceil(std::thread::available_parallelism().map_or(1, usize::from)).max(64);
    let parts: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..rows)
            .step_by(share)
            .map(|first| scope.spawn(move || f::product(part(weight, first, share), x)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a product")).collect()
    });
    (0..inputs)
        .flat_map(|input| parts.iter().flat_map(move |part| part.chunks(part.len() / inputs).nth(input).unwrap_or(&[])))
        .copied()
        .collect()
}

/// Rows `first` and up to `count - 1` after it.
fn part(weight: Matrix<'_>, first: usize, count: usize) -> Matrix<'_> {
    let rows = count.min(weight.rows - first);
    let of = |bytes: &'_ [u8]| first * bytes.len() / weight.rows..(first + rows) * bytes.len() / weight.rows;
    let Matrix { weight: w, scales, biases, .. } = weight;
    Matrix { rows, weight: &w[of(w)], scales: &scales[of(scales)], biases: &biases[of(biases)], ..weight }
}

fn add(to: &mut [f32], from: &[f32], weight: f32) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += weight * from);
}

fn delta_net(config: &Config, mixer: &DeltaNet, x: &[f32]) -> Vec<f32> {
    let shape = &config.delta_net;
    let [qkv, z, a, b] =
        [&mixer.in_proj_qkv, &mixer.in_proj_z, &mixer.in_proj_a, &mixer.in_proj_b].map(|w| product(w.get(0), x));
    let mut window = vec![0.0; 3 * shape.conv_channels()];
    let convolved = f::convolution(&mixer.conv1d, shape.key_heads, &qkv, &mut window);
    let (mut decay, mut beta) = (Vec::new(), Vec::new());
    for (a, b) in a.chunks(shape.value_heads).zip(b.chunks(shape.value_heads)) {
        let row = f::gates(a, b, &mixer.a_log, &mixer.dt_bias);
        decay.extend(row.0);
        beta.extend(row.1);
    }
    let mut state = vec![0.0; shape.value_heads * shape.head_dim * shape.head_dim];
    let o = f::delta_rule(&convolved, &decay, &beta, shape.key_heads, shape.value_heads, &mut state);
    product(mixer.out_proj.get(0), &f::gated_norm(&o, &mixer.norm, &z, config.rms_norm_eps))
}

fn attention(config: &Config, mixer: &Attention, x: &[f32]) -> Vec<f32> {
    let shape = &config.attention;
    let (head, rows) = (shape.head_dim, x.len() / config.hidden_size);
    let [q_gate, k, v] = [&mixer.q_proj, &mixer.k_proj, &mixer.v_proj].map(|w| product(w.get(0), x));
    let turned = |x: &[f32], gain: &[f32], row: usize| {
        f::rope(&f::rms_norm(x, gain, config.rms_norm_eps), shape.rotary_dims, shape.rope_theta, row)
    };
    let per_kv = shape.heads / shape.kv_heads;
    let mut out = vec![0.0; rows * shape.query_size()];
    for kv in 0..shape.kv_heads {
        let of = |x: &[f32], row: usize| x[(row * shape.kv_heads + kv) * head..][..head].to_vec();
        let halves = |x: Vec<f32>| x.into_iter().map(f16::from_f32);
        let keys: Vec<f16> = (0..rows).flat_map(|row| halves(turned(&of(&k, row), &mixer.k_norm, row))).collect();
        let values: Vec<f16> = (0..rows).flat_map(|row| halves(of(&v, row))).collect();
        for row in 0..rows {
            let place = |query: usize| row * shape.heads + kv * per_kv + query;
            let queries: Vec<f32> = (0..per_kv)
                .flat_map(|query| turned(&q_gate[place(query) * 2 * head..][..head], &mixer.q_norm, row))
                .collect();
            let found = f::attention(&queries, &keys[..(row + 1) * head], &values[..(row + 1) * head]);
            for (query, found) in found.chunks(head).enumerate() {
                let gates = &q_gate[(place(query) * 2 + 1) * head..][..head];
                let to = &mut out[place(query) * head..][..head];
                to.iter_mut().zip(found).zip(gates).for_each(|((to, o), gate)| *to = o * f::sigmoid(*gate));
            }
        }
    }
    product(mixer.o_proj.get(0), &out)
}

fn moe(config: &Config, moe: &Moe, normed: &[f32], x: &mut [f32]) {
    let router = product(moe.gate.get(0), normed);
    for (expert, weight) in f::route(&router, config.moe.experts, config.moe.experts_per_token).remove(0) {
        add(x, &swiglu(&moe.experts, expert as usize, normed), weight);
    }
    let gate = f::sigmoid(product(moe.shared_expert_gate.get(0), normed)[0]);
    add(x, &swiglu(&moe.shared_expert, 0, normed), gate);
}

fn swiglu(experts: &Experts, index: usize, x: &[f32]) -> Vec<f32> {
    let (gate, up) = (product(experts.gate_proj.get(index), x), product(experts.up_proj.get(index), x));
    product(experts.down_proj.get(index), &f::swiglu(&gate, &up))
}
