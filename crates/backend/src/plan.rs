//! Memory is planned before anything is loaded: what will be held, and whether it fits.

use std::fmt;

/// What a backend will hold for a model, a context and a number of sequences, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Tokens a sequence may hold.
    pub context: usize,
    /// Sequences at once.
    pub parallel: usize,
    /// The checkpoint's tensors.
    pub weights: u64,
    /// Activations of the largest step.
    pub workspace: u64,
    /// Recurrent state and conv window of one sequence.
    pub state: u64,
    /// KV cache of one token.
    pub kv_per_token: u64,
    /// The prefix cache at most; 0 without one.
    pub cache: u64,
}

impl MemoryPlan {
    /// KV cache and states of all sequences at full context.
    #[must_use]
    pub fn sequences(&self) -> u64 {
        self.parallel as u64 * (self.state + self.context as u64 * self.kv_per_token)
    }

    /// Everything. A cache may be asked for that no number of bytes could add up to; it does not fit either.
    #[must_use]
    pub fn total(&self) -> u64 {
        (self.weights + self.workspace + self.sequences()).saturating_add(self.cache)
    }

    /// The same plan for the longest context, at most `limit` and a multiple of 1024 where it is over that, whose
    /// total stays within `available` bytes; `None` if not even 1024 tokens fit.
    #[must_use]
    pub fn largest_context(&self, limit: usize, available: u64) -> Option<Self> {
        let fixed = (self.weights + self.workspace + self.parallel as u64 * self.state).saturating_add(self.cache);
        let tokens = available.checked_sub(fixed)? / (self.parallel as u64 * self.kv_per_token).max(1);
        let context = if tokens >= limit as u64 { limit } else { tokens as usize / 1024 * 1024 };
        (context > 0).then_some(Self { context, ..*self })
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
        writeln!(f, "weights      {:>10.1} MiB", mib(self.weights))?;
        writeln!(f, "workspace    {:>10.1} MiB", mib(self.workspace))?;
        writeln!(
            f,
            "states       {:>10.1} MiB  {} x {:.1} MiB",
            mib(self.parallel as u64 * self.state),
            self.parallel,
            mib(self.state)
        )?;
        writeln!(
            f,
            "KV cache     {:>10.1} MiB  {} x {} tokens x {:.1} KiB",
            mib(self.sequences() - self.parallel as u64 * self.state),
            self.parallel,
            self.context,
            self.kv_per_token as f64 / 1024.0
        )?;
        if self.cache > 0 {
            writeln!(f, "prefix cache {:>10.1} MiB  at most", mib(self.cache))?;
        }
        write!(f, "total        {:>10.1} MiB", mib(self.total()))
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryPlan;

    const PLAN: MemoryPlan =
        MemoryPlan { context: 4096, parallel: 2, weights: 1000, workspace: 100, state: 10, kv_per_token: 1, cache: 0 };

    #[test]
    fn adds_up() {
        assert_eq!(PLAN.total(), 1000 + 100 + 20 + 2 * 4096);
    }

    #[test]
    fn the_cache_is_part_of_it() {
        let plan = MemoryPlan { cache: 1 << 20, ..PLAN };
        assert_eq!(plan.total(), PLAN.total() + (1 << 20));
        assert_eq!(plan.largest_context(4096, plan.total()).map(|plan| plan.context), Some(4096));
        assert_eq!(plan.largest_context(4096, plan.total() - 1).map(|plan| plan.context), Some(3072));
        assert!(plan.to_string().contains("prefix cache        1.0 MiB"), "{plan}");
        assert!(!PLAN.to_string().contains("prefix"), "{PLAN}");
        let absurd = MemoryPlan { cache: u64::MAX - 5, ..PLAN };
        assert_eq!(absurd.total(), u64::MAX);
        assert!(absurd.to_string().contains("prefix cache 17592186044416.0 MiB"), "{absurd}");
        assert_eq!(absurd.largest_context(4096, 1 << 40), None);
    }

    #[test]
    fn finds_the_largest_context() {
        assert_eq!(PLAN.largest_context(4096, PLAN.total()).map(|plan| plan.context), Some(4096));
        assert_eq!(PLAN.largest_context(4096, PLAN.total() - 1).map(|plan| plan.context), Some(3072));
        assert_eq!(PLAN.largest_context(4096, 1200), None);
        assert_eq!(PLAN.largest_context(4096, 10), None);
    }
}
