//! The model once more, from the CPU backend's functions, which round what 4-bit weights meet to 15 bits where that backend
//! itself mostly takes 8: slow, for some hundred tokens, and nearer to the truth than either backend.

use std::num::NonZero;
use std::ops::Range;
use std::thread;

use half::f16;
use lily_checkpoint::{Attention, Config, DeltaNet, Experts, Matrix, Mixer, Moe, Weights};
use lily_cpu::{Simd, functions as f};

/// The logits of some positions of one sequence.
pub(crate) fn logits(config: &Config, weights: &Weights, tokens: &[u32], positions: &[Range<usize>]) -> Vec<f32> {
    let mut x = f::embed(weights.embed_tokens.get(0), tokens);
    for layer in &weights.layers {
        let normed = f::rms_norm(&x, &layer.input_layernorm, config.rms_norm_eps);
        let mixed = match &layer.mixer {
            Mixer::DeltaNet(mixer) => delta_net(config, mixer, &normed),
            Mixer::Attention(mixer) => attention(config, mixer, &normed),
        };
        add(&mut x, &mixed, 1.0);
        let normed = f::rms_norm(&x, &layer.post_attention_layernorm, config.rms_norm_eps);
        add(&mut x, &moe(config, &layer.moe, &normed), 1.0);
    }
    let wide = config.hidden_size;
    let asked: Vec<f32> = positions.iter().flat_map(|part| &x[part.start * wide..part.end * wide]).copied().collect();
    product(weights.lm_head.get(0), &f::rms_norm(&asked, &weights.norm, config.rms_norm_eps))
}

/// What `make` gives for consecutive parts of `0..count`, each of them of `least` at least, on all cores.
fn on_all_cores<T: Send>(count: usize, least: usize, make: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
    let share = count.div_ceil(thread::available_parallelism().map_or(1, NonZero::get)).max(least);
    thread::scope(|scope| {
        let part = |first| {
            scope.spawn({
                let make = &make;
                move || make(first..count.min(first + share))
            })
        };
        let threads: Vec<_> = (0..count).step_by(share).map(part).collect();
        threads.into_iter().map(|thread| thread.join().expect("a part")).collect()
    })
}

/// As the function, rows of the weight divided among cores.
fn product(weight: Matrix<'_>, x: &[f32]) -> Vec<f32> {
    let inputs = x.len() / weight.cols;
    let parts = on_all_cores(weight.rows, 64, |rows| (rows.len(), on_one_core(part(weight, rows), x)));
    let mut out = Vec::with_capacity(inputs * weight.rows);
    for input in 0..inputs {
        parts.iter().for_each(|(rows, part)| out.extend_from_slice(&part[input * rows..][..*rows]));
    }
    out
}

/// Some rows of it.
fn part(weight: Matrix<'_>, rows: Range<usize>) -> Matrix<'_> {
    let of = |bytes: &[u8]| rows.start * (bytes.len() / weight.rows)..rows.end * (bytes.len() / weight.rows);
    let Matrix { weight: w, scales, biases, .. } = weight;
    Matrix { rows: rows.len(), weight: &w[of(w)], scales: &scales[of(scales)], biases: &biases[of(biases)], ..weight }
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
    let o = delta_rule(shape.key_heads, shape.value_heads, &convolved, &decay, &beta);
    product(mixer.out_proj.get(0), &f::gated_norm(&o, &mixer.norm, &z, config.rms_norm_eps))
}

/// As the function from a state of zeros, key heads divided among cores.
fn delta_rule(key_heads: usize, value_heads: usize, convolved: &[f32], decay: &[f32], beta: &[f32]) -> Vec<f32> {
    const HEAD: usize = 128;
    let (rows, values) = (decay.len() / value_heads, value_heads / key_heads);
    let channels = (2 * key_heads + value_heads) * HEAD;
    let of_head = |head: usize| {
        let parts = [(head, 1), (key_heads + head, 1), (2 * key_heads + head * values, values)];
        let row = |row: &[f32]| parts.map(|(first, heads)| &row[first * HEAD..][..heads * HEAD]).concat();
        let inputs: Vec<f32> = convolved.chunks(channels).flat_map(row).collect();
        let gates = |all: &[f32]| -> Vec<f32> {
            all.chunks(value_heads).flat_map(|row| &row[head * values..][..values]).copied().collect()
        };
        f::delta_rule(&inputs, &gates(decay), &gates(beta), 1, values, &mut vec![0.0; values * HEAD * HEAD])
    };
    let parts = on_all_cores(key_heads, 1, |heads| heads.map(of_head).collect::<Vec<_>>());
    let heads: Vec<Vec<f32>> = parts.into_iter().flatten().collect();
    let mut out = Vec::with_capacity(rows * value_heads * HEAD);
    for row in 0..rows {
        heads.iter().for_each(|head| out.extend_from_slice(&head[row * values * HEAD..][..values * HEAD]));
    }
    out
}

fn attention(config: &Config, mixer: &Attention, x: &[f32]) -> Vec<f32> {
    let shape = &config.attention;
    let (head, rows) = (shape.head_dim, x.len() / config.hidden_size);
    let [q_gate, k, v] = [&mixer.q_proj, &mixer.k_proj, &mixer.v_proj].map(|w| product(w.get(0), x));
    let turned = |x: &[f32], gain: &[f32], row: usize| {
        f::rope(&f::rms_norm(x, gain, config.rms_norm_eps), shape.rotary_dims, shape.rope_theta, row)
    };
    let per_kv = shape.heads / shape.kv_heads;
    let of = |x: &[f32], row: usize, kv: usize| x[(row * shape.kv_heads + kv) * head..][..head].to_vec();
    let cached = |make: &(dyn Fn(usize, usize) -> Vec<f32> + Sync)| -> Vec<Vec<f16>> {
        let all = |kv| (0..rows).flat_map(move |row| make(row, kv)).map(f16::from_f32).collect();
        (0..shape.kv_heads).map(all).collect()
    };
    let keys = cached(&|row, kv| turned(&of(&k, row, kv), &mixer.k_norm, row));
    let values = cached(&|row, kv| of(&v, row, kv));
    let of_row = |row: usize, kv: usize| -> Vec<f32> {
        let place = |query: usize| (row * shape.heads + kv * per_kv + query) * 2 * head;
        let queries = (0..per_kv).flat_map(|query| turned(&q_gate[place(query)..][..head], &mixer.q_norm, row));
        let seen = (row + 1) * head;
        let found = f::attention(&queries.collect::<Vec<_>>(), &keys[kv][..seen], &values[kv][..seen]);
        let gates = (0..per_kv).flat_map(|query| &q_gate[place(query) + head..][..head]);
        found.into_iter().zip(gates).map(|(o, gate)| o * f::sigmoid(*gate)).collect()
    };
    let of_rows = |rows: Range<usize>| -> Vec<f32> {
        rows.flat_map(|row| (0..shape.kv_heads).map(move |kv| (row, kv)))
            .flat_map(|(row, kv)| of_row(row, kv))
            .collect()
    };
    let parts = on_all_cores(rows, 1, of_rows);
    product(mixer.o_proj.get(0), &parts.concat())
}

/// What the experts of each row add to it, experts divided among cores.
fn moe(config: &Config, moe: &Moe, normed: &[f32]) -> Vec<f32> {
    let wide = config.hidden_size;
    let router = product(moe.gate.get(0), normed);
    let gates = product(moe.shared_expert_gate.get(0), normed);
    let mut rows_of: Vec<Vec<(usize, f32)>> = vec![Vec::new(); config.moe.experts];
    for (row, chosen) in f::route(&router, config.moe.experts, config.moe.experts_per_token).iter().enumerate() {
        chosen.iter().for_each(|&(expert, weight)| rows_of[expert as usize].push((row, weight)));
    }
    let of_expert = |expert: usize| {
        let x: Vec<f32> = rows_of[expert].iter().flat_map(|(row, _)| &normed[row * wide..][..wide]).copied().collect();
        (expert, if x.is_empty() { x } else { swiglu(&moe.experts, expert, &x, on_one_core) })
    };
    let parts = on_all_cores(config.moe.experts, 1, |experts| experts.map(of_expert).collect::<Vec<_>>());
    let mut sum = swiglu(&moe.shared_expert, 0, normed, product);
    sum.chunks_mut(wide).zip(gates).for_each(|(sum, gate)| sum.iter_mut().for_each(|sum| *sum *= f::sigmoid(gate)));
    for (expert, out) in parts.into_iter().flatten() {
        for (&(row, weight), out) in rows_of[expert].iter().zip(out.chunks(wide)) {
            add(&mut sum[row * wide..][..wide], out, weight);
        }
    }
    sum
}

/// As the function: every instruction set gives the same bits.
fn on_one_core(weight: Matrix<'_>, x: &[f32]) -> Vec<f32> {
    f::product_on(Simd::best(), weight, x)
}

fn swiglu(experts: &Experts, index: usize, x: &[f32], product: impl Fn(Matrix<'_>, &[f32]) -> Vec<f32>) -> Vec<f32> {
    let (gate, up) = (product(experts.gate_proj.get(index), x), product(experts.up_proj.get(index), x));
    product(experts.down_proj.get(index), &f::swiglu(&gate, &up))
}
