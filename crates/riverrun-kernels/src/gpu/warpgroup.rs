//! Products of four planes on tensor cores: PTX's `wgmma`, whose operand `B` lies in shared memory. Compute capability 9.0 alone.
//!
//! Each plane has 16 rows of `A` and of the sums, in the registers that [`mma`](super::mma) has them in. `B` is made of panels: rows of
//! 64 numbers of 16 bits, 128 bytes apart, from a multiple of 1024 bytes on, whose vectors of 16 bytes are [permuted](swizzled).

use cubecl::prelude::*;

use super::storage::Storage;

/// Numbers of a row of a panel.
pub(crate) const PANEL: usize = 64;

/// Bytes of a row of a panel.
pub(crate) const ROW: usize = 2 * PANEL;

/// Where a panel may begin, in bytes.
pub(crate) const ALIGNMENT: usize = 1024;

/// A product of 16 numbers of `A`'s depth with some columns of `B`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Which 16 numbers.
    pub depth: usize,
    /// Columns of the sums: the first, and how many, a multiple of 8 up to [`PANEL`].
    pub columns: (usize, usize),
    /// Bytes from the start of the tile to the first number of `B`.
    pub offset: usize,
}

/// The instructions of a product of `depth` times 16, with `columns` columns of sums: those given, or zeros. The operands are in the
/// order of [`product`]'s. `rows`: a row of a panel is a row of `B`, else a column.
fn text(
    steps: &[Step],
    [depth, columns]: [usize; 2],
    [given, waits]: [bool; 2],
    rows: bool,
    storage: Storage,
) -> String {
    let name = match storage {
        Storage::F16Words => "f16",
        Storage::Plain | Storage::Bf16Words => "bf16",
    };
    let sums = columns / 2;
    let words = if given { 2 * sums } else { sums };
    let tile = words + 4 * depth;
    let list = |first: usize, count: usize| {
        let all: Vec<String> = (first..first + count).map(|n| format!("%{n}")).collect();
        all.join(", ")
    };
    let mut lines = vec![
        "{".to_string(),
        ".reg .pred adds, sets;".into(),
        ".reg .b32 at, low, high;".into(),
        ".reg .b64 tile;".into(),
        format!("and.b32 at, %{tile}, 0x3ffff;"),
        "shr.u32 at, at, 4;".into(),
        "mov.b32 high, 0x40000040;".into(),
        "setp.ne.u32 sets, at, at;".into(),
        "setp.eq.u32 adds, at, at;".into(),
    ];
    if given {
        lines.extend((0..sums).map(|n| format!("mov.f32 %{n}, %{};", sums + n)));
    }
    lines.push("wgmma.fence.sync.aligned;".into());
    let mut begun = vec![given; columns];
    for step in steps {
        let (first, count) = step.columns;
        let adds = begun[first];
        let columns = &mut begun[first..first + count];
        assert!(columns.iter().all(|begun| *begun == adds));
        columns.fill(true);
        // Eight rows of a panel further on are 1024 bytes; vectors are permuted within 128 bytes.
        lines.push(format!("add.u32 low, at, {};", step.offset / 16));
        lines.push("mov.b64 tile, {low, high};".into());
        lines.push(format!(
            "wgmma.mma_async.sync.aligned.m64n{count}k16.f32.{name}.{name} {{{}}}, {{{}}}, tile, {}, 1, 1, {};",
            list(first / 2, count / 2),
            list(words + 4 * step.depth, 4),
            if adds { "adds" } else { "sets" },
            u8::from(rows),
        ));
    }
    lines.push("wgmma.commit_group.sync.aligned;".into());
    if waits {
        lines.push("wgmma.wait_group.sync.aligned 0;".into());
    }
    lines.push("}".into());
    lines.join(" ")
}

/// `sums + a B`, or `a B`; all four planes call it. If it does not wait, the result may only be used after [`settle`]. `A`: four words
/// for each 16 of the depth; `D`: four sums for each 8 columns.
#[cube]
pub(crate) fn product<A: Size, D: Size>(
    a: Vector<u32, A>,
    sums: Vector<f32, D>,
    tile: u32,
    #[comptime] steps: Vec<Step>,
    #[comptime] sizes: [usize; 2],
    #[comptime] given: bool,
    #[comptime] waits: bool,
    #[comptime] rows: bool,
    #[comptime] storage: Storage,
) -> Vector<f32, D> {
    let text = comptime!(text(&steps, sizes, [given, waits], rows, storage));
    let found: Vector<f32, D>;
    if comptime!(given) {
        gpu_asm!(
            "{text} // {} {} {} {}",
            out(_) found, in(_) sums, in(_) a, in(_) tile, options(nomem),
        );
    } else {
        gpu_asm!("{text} // {} {} {}", out(_) found, in(_) a, in(_) tile, options(nomem));
    }
    found
}

/// Waits for all products but the `left` last ones. These are the sums of one that is there then.
#[cube]
pub(crate) fn settle<D: Size>(
    sums: Vector<f32, D>,
    #[comptime] columns: usize,
    #[comptime] left: usize,
) -> Vector<f32, D> {
    let text = comptime!({
        let count = columns / 2;
        let mut lines = vec![format!("{{ wgmma.wait_group.sync.aligned {left};")];
        lines.extend((0..count).map(|n| format!("mov.f32 %{n}, %{};", count + n)));
        lines.push("}".into());
        lines.join(" ")
    });
    let found: Vector<f32, D>;
    gpu_asm!("{text} // {} {}", out(_) found, in(_) sums, options(nomem));
    found
}

/// Makes what the thread has written to shared memory visible to [`product`], once the cube has met.
#[cube]
pub(crate) fn show() {
    gpu_asm!("fence.proxy.async.shared::cta;");
}

/// Bytes from the start of a panel to a vector of a row.
#[cube]
pub(crate) fn swizzled(row: u32, vector: u32) -> u32 {
    row * comptime!(ROW as u32) + (vector ^ (row % 8)) * 16
}
