//! How memory goes back to the system.

/// The size from which a block gets pages of its own: where glibc begins.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED: i32 = 128 << 10;
/// Blocks that are mapped at most; further ones come from the heaps. Each may be a mapping of its own, of which Linux lets a process
/// have 65,530 unless told otherwise, threads' stacks and files among them: a prefix cache of some 64 GiB comes to that.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MOST_MAPPED: i32 = 32 << 10;

/// Has the allocator map each large block by itself, as it does at first, and give it back when it is free. Left alone, glibc
/// takes each one that goes, up to 32 MiB, for a reason to keep such blocks in its heaps from then on. There snapshots, pages
/// of keys and values, and activations, which come and go in sizes and orders of their own, leave gaps: memory that
/// no plan has (docs/operations.md has figures).
pub(crate) fn map_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets numbers of the allocator's, under its lock, and touches no memory of ours. Should it refuse, all is as
    // before.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
        libc::mallopt(libc::M_MMAP_MAX, MOST_MAPPED);
    }
}
