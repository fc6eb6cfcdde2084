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
    /// Columns of the sums: the first, and how many, a multiple of 8.
    pub columns: (usize, usize),
    /// Bytes from the start of the tile to the first number of `B`.
    pub offset: usize,
    /// Bytes from panel to panel, where rows of `B` go on in further panels.
    pub panel: usize,
    /// Bytes from the start of `A`'s tile to its first number, where `A` lies in shared memory.
    pub left: usize,
}

/// What all steps of a product have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    /// The depth, in 16 numbers: 4 or 8 where `A` is in registers.
    pub depth: usize,
    /// Columns of sums: 64 or 128.
    pub columns: usize,
    /// It is added to the sums; else they are set.
    pub given: bool,
    /// It is there at once; else after [`settle`], before which nothing may read or change the sums, `A` and `B`.
    pub waits: bool,
    /// A row of a panel is a row of `B`, else a column.
    pub rows: bool,
    pub storage: Storage,
}

/// Where `A` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Registers,
    /// In panels, a row of which is a row of `A`.
    Tile,
}

/// The instructions of a product. Operands: the sums, those given, `A` or the place of its tile, the place of `B`'s.
fn text(steps: &[Step], product: Product, left: Left) -> String {
    let name = match product.storage {
        Storage::F16Words => "f16",
        Storage::Plain | Storage::Bf16Words => "bf16",
    };
    let sums = product.columns / 2;
    let words = if product.given { 2 * sums } else { sums };
    let tile = match left {
        Left::Registers => words + 4 * product.depth,
        Left::Tile => words + 1,
    };
    let list = |first: usize, count: usize| {
        let all: Vec<String> = (first..first + count).map(|n| format!("%{n}")).collect();
        all.join(", ")
    };
    let place = |to: &str, operand: usize| {
        [
            format!("and.b32 {to}, %{operand}, 0x3ffff;"),
            format!("shr.u32 {to}, {to}, 4;"),
        ]
    };
    let mut lines = vec![
        "{".to_string(),
        ".reg .pred adds, sets;".into(),
        ".reg .b32 at, own, low, high;".into(),
        ".reg .b64 tile, rows;".into(),
    ];
    lines.extend(place("at", tile));
    if left == Left::Tile {
        lines.extend(place("own", words));
    }
    lines.extend([
        "mov.b32 high, 0x40000040;".into(),
        "setp.ne.u32 sets, at, at;".into(),
        "setp.eq.u32 adds, at, at;".into(),
    ]);
    if product.given {
        lines.extend((0..sums).map(|n| format!("mov.f32 %{n}, %{};", sums + n)));
    }
    lines.push("wgmma.fence.sync.aligned;".into());
    let mut begun = vec![product.given; product.columns];
    for step in steps {
        let (first, count) = step.columns;
        let adds = begun[first];
        let columns = &mut begun[first..first + count];
        assert!(columns.iter().all(|begun| *begun == adds));
        columns.fill(true);
        // Eight rows of a panel further on are 1024 bytes; vectors are permuted within 128 bytes.
        let a = match left {
            Left::Registers => format!("{{{}}}", list(words + 4 * step.depth, 4)),
            Left::Tile => {
                lines.push(format!("add.u32 low, own, {};", step.left / 16));
                lines.push("mov.b64 rows, {low, high};".into());
                "rows".into()
            }
        };
        let offset = step.offset / 16 + ((step.panel / 16) << 16);
        lines.push(format!("add.u32 low, at, {offset};"));
        lines.push("mov.b64 tile, {low, high};".into());
        lines.push(format!(
            "wgmma.mma_async.sync.aligned.m64n{count}k16.f32.{name}.{name} {{{}}}, {a}, tile, {}, 1, 1, {}{};",
            list(first / 2, count / 2),
            if adds { "adds" } else { "sets" },
            if left == Left::Tile { "0, " } else { "" },
            u8::from(product.rows),
        ));
    }
    lines.push("wgmma.commit_group.sync.aligned;".into());
    if product.waits {
        lines.push("wgmma.wait_group.sync.aligned 0;".into());
    }
    lines.push("}".into());
    lines.join(" ")
}

/// `sums + a B`, or `a B`; all four planes call it. `a`: four words for each 16 of the depth; `sums`: four for each 8 columns.
#[cube]
pub(crate) fn multiply(
    a: &Array<Vector<u32, Const<4>>>,
    tile: u32,
    sums: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] steps: Vec<Step>,
    #[comptime] product: Product,
) {
    if comptime!(product.depth == 4 && product.columns == 64) {
        by_registers::<Const<16>, Const<32>>(a, tile, sums, steps, product);
    } else if comptime!(product.depth == 8 && product.columns == 64) {
        by_registers::<Const<32>, Const<32>>(a, tile, sums, steps, product);
    } else if comptime!(product.depth == 4 && product.columns == 128) {
        by_registers::<Const<16>, Const<64>>(a, tile, sums, steps, product);
    } else {
        by_registers::<Const<32>, Const<64>>(a, tile, sums, steps, product);
    }
}

#[cube]
fn by_registers<A: Size, D: Size>(
    a: &Array<Vector<u32, Const<4>>>,
    tile: u32,
    sums: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] steps: Vec<Step>,
    #[comptime] product: Product,
) {
    let mut words = Vector::<u32, A>::new(0u32);
    #[unroll]
    for step in 0..comptime!(product.depth) {
        #[unroll]
        for i in 0..4usize {
            words.insert(comptime!(4 * step + i), a[step].extract(i));
        }
    }
    // A variable would be passed to an instruction by its address.
    let words = Vector::<u32, A>::reinterpret(Vector::<f32, A>::reinterpret(words));
    let text = comptime!(text(&steps, product, Left::Registers));
    let found: Vector<f32, D>;
    if comptime!(product.given) {
        let sums = join::<D>(&*sums, comptime!(product.columns / 8));
        gpu_asm!(
            "{text} // {} {} {} {}",
            out(_) found, in(_) sums, in(_) words, in(_) tile, options(nomem),
        );
    } else {
        gpu_asm!("{text} // {} {} {}", out(_) found, in(_) words, in(_) tile, options(nomem));
    }
    part::<D>(sums, found, comptime!(product.columns / 8));
}

/// The same, where `A` lies in shared memory: in panels of 64 rows or more, the product's first row at `rows`.
#[cube]
pub(crate) fn multiply_tiles(
    rows: u32,
    tile: u32,
    sums: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] steps: Vec<Step>,
    #[comptime] product: Product,
) {
    if comptime!(product.columns == 64) {
        by_tiles::<Const<32>>(rows, tile, sums, steps, product);
    } else {
        by_tiles::<Const<64>>(rows, tile, sums, steps, product);
    }
}

#[cube]
fn by_tiles<D: Size>(
    rows: u32,
    tile: u32,
    sums: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] steps: Vec<Step>,
    #[comptime] product: Product,
) {
    let text = comptime!(text(&steps, product, Left::Tile));
    let found: Vector<f32, D>;
    if comptime!(product.given) {
        let sums = join::<D>(&*sums, comptime!(product.columns / 8));
        gpu_asm!(
            "{text} // {} {} {} {}",
            out(_) found, in(_) sums, in(_) rows, in(_) tile, options(nomem),
        );
    } else {
        gpu_asm!("{text} // {} {} {}", out(_) found, in(_) rows, in(_) tile, options(nomem));
    }
    part::<D>(sums, found, comptime!(product.columns / 8));
}

/// All numbers of `count` sums.
#[cube]
fn join<D: Size>(sums: &Array<Vector<f32, Const<4>>>, #[comptime] count: usize) -> Vector<f32, D> {
    let mut all = Vector::<f32, D>::new(0.0f32);
    #[unroll]
    for n in 0..count {
        #[unroll]
        for i in 0..4usize {
            all.insert(comptime!(4 * n + i), sums[n].extract(i));
        }
    }
    // A variable would be passed to an instruction by its address.
    Vector::<f32, D>::reinterpret(Vector::<u32, D>::reinterpret(all))
}

#[cube]
fn part<D: Size>(
    sums: &mut Array<Vector<f32, Const<4>>>,
    all: Vector<f32, D>,
    #[comptime] count: usize,
) {
    #[unroll]
    for n in 0..count {
        let mut numbers = Vector::<f32, Const<4>>::new(0.0f32);
        #[unroll]
        for i in 0..4usize {
            numbers.insert(i, all.extract(comptime!(4 * n + i)));
        }
        sums[n] = numbers;
    }
}

/// Waits for all products but the `left` last ones. These are the sums of one that is there then. The compiler may move the wait before
/// what needs none of them, but for what [`stay`] holds.
#[cube]
pub(crate) fn settle(
    sums: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] columns: usize,
    #[comptime] left: usize,
) {
    if comptime!(columns == 64) {
        settle_numbers::<Const<32>>(sums, columns, left);
    } else {
        settle_numbers::<Const<64>>(sums, columns, left);
    }
}

#[cube]
fn settle_numbers<D: Size>(
    sums: &mut Array<Vector<f32, Const<4>>>,
    #[comptime] columns: usize,
    #[comptime] left: usize,
) {
    let text = comptime!({
        let count = columns / 2;
        let mut lines = vec![format!("{{ wgmma.wait_group.sync.aligned {left};")];
        lines.extend((0..count).map(|n| format!("mov.f32 %{n}, %{};", count + n)));
        lines.push("}".into());
        lines.join(" ")
    });
    let before = join::<D>(&*sums, comptime!(columns / 8));
    let found: Vector<f32, D>;
    gpu_asm!("{text} // {} {}", out(_) found, in(_) before, options(nomem));
    part::<D>(sums, found, comptime!(columns / 8));
}

/// Keeps a wait behind what is computed before: a branch that no cube takes, beyond which ptxas moves no wait.
#[cube]
pub(crate) fn stay() {
    let text = comptime!({
        let count = ".reg .u32 count; mov.u32 count, %nctaid.y;";
        let branch =
            "setp.eq.u32 never, count, 0x7fffffff; @!never bra ahead; nanosleep.u32 20; ahead:";
        format!("{{ .reg .pred never; {count} {branch} }}")
    });
    gpu_asm!("{text}");
}

/// Makes what the thread has written to shared memory visible to [`product`], once the cube has met.
#[cube]
pub(crate) fn show() {
    gpu_asm!("fence.proxy.async.shared::cta;");
}

/// Where the first panel begins in the shared memory at an address.
#[cube]
pub(crate) fn first_panel(memory: u32) -> u32 {
    let spare = comptime!(ALIGNMENT as u32 - 1);
    (memory + spare) & comptime!(!spare)
}

/// Bytes from the start of a panel to a vector of a row.
#[cube]
pub(crate) fn swizzled(row: u32, vector: u32) -> u32 {
    row * comptime!(ROW as u32) + (vector ^ (row % 8)) * 16
}
