//! `lily inspect`: what a checkpoint is, and what it takes to run it.

use std::fs;
use std::io::{self, Write, stdout};
use std::path::Path;

use anyhow::{Context, Result};
use lily_checkpoint::{Checkpoint, Config, LayerKind, Summary};
use lily_gpu::device::Tiles;
use lily_gpu::{Outline, Step};

use crate::cache::CacheSize;
use crate::cli::{InspectArgs, PlanArgs, TilesChoice};
use crate::load::{machine_memory, open_checkpoint, plan, sequences, transit};

/// Prints shapes, bits and bytes, and the memory plan.
pub(crate) fn inspect(args: &InspectArgs) -> Result<()> {
    if let Some(named) = &args.plan.config {
        let config = read_config(named)?;
        if args.plan.plan {
            return print_step(&config, &args.plan);
        }
        let mut out = stdout().lock();
        print_shapes(&mut out, &named.display().to_string(), &config)?;
        writeln!(out)?;
        return print_memory(&mut out, &config, Summary::bytes_of(&config), args);
    }
    let checkpoint = open_checkpoint(&args.model)?;
    if args.plan.plan {
        return print_step(&checkpoint.config, &args.plan);
    }
    let mut out = stdout().lock();
    print_shapes(&mut out, checkpoint.name(), &checkpoint.config)?;
    writeln!(out)?;
    print_bytes(&mut out, &checkpoint)?;
    writeln!(out)?;
    print_memory(&mut out, &checkpoint.config, checkpoint.weights.summary().bytes(), args)
}

fn print_memory(out: &mut impl Write, config: &Config, weights: u64, args: &InspectArgs) -> Result<()> {
    let (device, plan) = args
        .model
        .device
        .choose(|device| plan(config, weights, args.model.max_context, args.parallel, device, CacheSize::Share))?;
    writeln!(out, "Memory for {} of {} tokens", sequences(plan.parallel), plan.context)?;
    writeln!(out, "{plan}")?;
    let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
    if let Some(transit) = transit(config, &plan, device)? {
        writeln!(
            out,
            "With --cache-dir {:.1} MiB of the prefix cache, at most, are in this machine's memory",
            mib(transit)
        )?;
    }
    writeln!(out, "this machine {:>10.1} MiB", mib(machine_memory()?))?;
    Ok(())
}

fn read_config(config: &Path) -> Result<Config> {
    const FULL_SIZE: &str = "qwen3.6-35b-a3b";
    if config == Path::new(FULL_SIZE) {
        return Ok(Config::parse(include_bytes!("../../../models/qwen3.6-35b-a3b/config.json"))?);
    }
    let json = fs::read(config)
        .with_context(|| format!("cannot read {}: give {FULL_SIZE} or the path of a config.json", config.display()))?;
    Config::parse(&json).with_context(|| format!("{}", config.display()))
}

/// What a step takes on a GPU.
fn print_step(config: &Config, args: &PlanArgs) -> Result<()> {
    let step = args.prefill.map_or(Step::Decode(args.batch as usize), |rows| Step::Prefill(rows as usize));
    let tiles = match args.tiles {
        TilesChoice::Simdgroup => Tiles::Simdgroup,
        TilesChoice::Tensor => Tiles::Tensor,
        TilesChoice::Warpgroup => Tiles::Warpgroup,
    };
    let outline = Outline::on(config, step, args.context as usize, tiles)?;
    write!(stdout().lock(), "{outline}")?;
    if let Some(file) = &args.dot {
        fs::write(file, outline.plan.dot()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn print_shapes(out: &mut impl Write, name: &str, config: &Config) -> io::Result<()> {
    let attention_layers = config.layers.iter().filter(|&&kind| kind == LayerKind::Attention).count();
    writeln!(out, "{name}")?;
    writeln!(
        out,
        "layers      {} ({} Gated DeltaNet, {attention_layers} attention)",
        config.layers.len(),
        config.layers.len() - attention_layers
    )?;
    writeln!(out, "hidden      {}, vocabulary {}", config.hidden_size, config.vocab_size)?;
    writeln!(
        out,
        "attention   {} query heads, {} KV heads of {}, RoPE on {} (theta {})",
        config.attention.heads,
        config.attention.kv_heads,
        config.attention.head_dim,
        config.attention.rotary_dims,
        config.attention.rope_theta
    )?;
    writeln!(
        out,
        "DeltaNet    {} key heads, {} value heads of {}, conv width {}",
        config.delta_net.key_heads,
        config.delta_net.value_heads,
        config.delta_net.head_dim,
        config.delta_net.conv_width
    )?;
    writeln!(
        out,
        "experts     {} of width {}, {} a token, and a shared one of {}",
        config.moe.experts, config.moe.expert_width, config.moe.experts_per_token, config.moe.shared_expert_width
    )?;
    writeln!(out, "context     {} tokens", config.max_position_embeddings)
}

fn print_bytes(out: &mut impl Write, checkpoint: &Checkpoint) -> io::Result<()> {
    let summary = checkpoint.weights.summary();
    let mut line = |name: &str, bytes: u64, parameters: u64, format: &str| {
        let (bytes, parameters) = (bytes as f64 / (1024.0 * 1024.0), parameters as f64 / 1e6);
        writeln!(out, "{name:<22} {bytes:>10.1} MiB  {parameters:>8.1} M parameters  {format}")
    };
    for group in &summary.groups {
        let bits: Vec<String> = group.bits.iter().map(|bits| format!("{}-bit", bits.count())).collect();
        line(group.name, group.bytes, group.parameters, &bits.join(", "))?;
    }
    line("all", summary.bytes(), summary.parameters(), "")?;
    let skipped = &checkpoint.skipped;
    if skipped.tensors > 0 {
        let bytes = skipped.bytes as f64 / (1024.0 * 1024.0);
        writeln!(out, "{} tensors of vision and MTP parts are not used ({bytes:.1} MiB)", skipped.tensors)?;
    }
    Ok(())
}
