//! What each idea of the kernels and plans brings: the model without it. For measurements; the default build has none of it.
//!
//! [`Ablated`] is a device around a device that rewrites plans before it prepares them, so that the model, its records and
//! its memory are those of the whole engine, and one copy of the weights serves all ablations.

mod chains;
mod device;
mod halves;
mod rewrite;
mod routing;

pub use device::{Ablated, Prepared};

/// An idea that can be left out, and what then is done instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ablation {
    /// Dispatches run one after another, each waiting for the one before.
    Serial,
    /// Many-row products take tiles of 16 rows where they would take 32 or 64.
    SmallTiles,
    /// The context that a decode step's plan has room for is cut into so many parts instead of blocks of 256 tokens; none is
    /// shorter than such a block.
    FixedParts(u32),
    /// The plan ends after each layer's choice of experts; the CPU reads the choices, sorts them and writes order, places and
    /// block map.
    RoutingByCpu,
    /// Each many-row product's weights are first written to memory as halves, all experts' too.
    DequantisedFirst,
    /// DeltaNet's scan reads its state from memory and writes it back every two tokens.
    StateInMemory,
    /// A threadgroup of decode attention has one query head, so that keys and values are read once for each.
    HeadsApart,
    /// In decode steps of one row RMSNorm, residual, SwiGLU, the choice of experts, and DeltaNet's convolution, recurrence and
    /// output norm are kernels of their own. The router's norm, attention's output gate and the experts' weighted sum stay fused.
    SingleKernels,
}

impl Ablation {
    /// All of them. 64 parts for each of two KV heads are a threadgroup for about each multiprocessor of a large GPU.
    pub const ALL: [Self; 8] = [
        Self::DequantisedFirst,
        Self::RoutingByCpu,
        Self::SmallTiles,
        Self::StateInMemory,
        Self::HeadsApart,
        Self::FixedParts(64),
        Self::Serial,
        Self::SingleKernels,
    ];

    /// Whether prompts are read otherwise.
    #[must_use]
    pub const fn changes_prefill(self) -> bool {
        matches!(
            self,
            Self::Serial | Self::SmallTiles | Self::RoutingByCpu | Self::DequantisedFirst | Self::StateInMemory
        )
    }

    /// Whether tokens are decoded otherwise.
    #[must_use]
    pub const fn changes_decode(self) -> bool {
        matches!(self, Self::Serial | Self::FixedParts(_) | Self::HeadsApart | Self::SingleKernels)
    }
}
