//! `lily inspect`: what a checkpoint is, and what it takes to run it.

use anyhow::Result;
use lily_checkpoint::{Checkpoint, LayerKind};

use crate::cli::InspectArgs;
use crate::load::{machine_memory, open_checkpoint, plan};

/// Prints shapes, bits and bytes, and the memory plan.
pub(crate) fn inspect(args: &InspectArgs) -> Result<()> {
    let checkpoint = open_checkpoint(&args.model)?;
    print_shapes(&checkpoint);
    println!();
    print_bytes(&checkpoint);
    println!();
    let plan = plan(&checkpoint, args.model.max_context, args.parallel)?;
    println!("Memory for {} sequences of {} tokens", plan.parallel, plan.context);
    println!("{plan}");
    println!("this machine {:>9.1} MiB", machine_memory()? as f64 / (1024.0 * 1024.0));
    Ok(())
}

fn print_shapes(checkpoint: &Checkpoint) {
    let config = &checkpoint.config;
    let attention_layers = config.layers.iter().filter(|&&kind| kind == LayerKind::Attention).count();
    println!("{}", checkpoint.name());
    println!(
        "layers      {} ({} Gated DeltaNet, {attention_layers} attention)",
        config.layers.len(),
        config.layers.len() - attention_layers
    );
    println!("hidden      {}, vocabulary {}", config.hidden_size, config.vocab_size);
    println!(
        "attention   {} query heads, {} KV heads of {}, RoPE on {} (theta {})",
        config.attention.heads,
        config.attention.kv_heads,
        config.attention.head_dim,
        config.attention.rotary_dims,
        config.attention.rope_theta
    );
    println!(
        "DeltaNet    {} key heads, {} value heads of {}, conv width {}",
        config.delta_net.key_heads,
        config.delta_net.value_heads,
        config.delta_net.head_dim,
        config.delta_net.conv_width
    );
    println!(
        "experts     {} of width {}, {} a token, and a shared one of {}",
        config.moe.experts, config.moe.expert_width, config.moe.experts_per_token, config.moe.shared_expert_width
    );
    println!("context     {} tokens", config.max_position_embeddings);
}

fn print_bytes(checkpoint: &Checkpoint) {
    let summary = checkpoint.weights.summary();
    let line = |name: &str, bytes: u64, parameters: u64, format: &str| {
        let (bytes, parameters) = (bytes as f64 / (1024.0 * 1024.0), parameters as f64 / 1e6);
        println!("{name:<22} {bytes:>10.1} MiB  {parameters:>8.1} M parameters  {format}");
    };
    for group in &summary.groups {
        let bits: Vec<String> = group.bits.iter().map(|bits| format!("{}-bit", bits.count())).collect();
        line(group.name, group.bytes, group.parameters, &bits.join(", "));
    }
    line("all", summary.bytes(), summary.parameters(), "");
    let skipped = &checkpoint.skipped;
    if skipped.tensors > 0 {
        let bytes = skipped.bytes as f64 / (1024.0 * 1024.0);
        println!("{} tensors of vision and MTP parts are not used ({bytes:.1} MiB)", skipped.tensors);
    }
}
