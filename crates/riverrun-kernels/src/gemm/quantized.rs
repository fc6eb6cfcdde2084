//! Matrices of integers of 8 or 4 bits with a scale for some of them, for products that wait for memory.

use half::bf16;

use crate::Error;
use crate::error::expect_length;
use crate::threads::pieces::{InPieces, Pieces};

/// Rows of a column that share a scale.
pub const GROUP: usize = 32;

/// Columns that are stored together.
pub const PANEL: usize = 128;

/// The bits of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bits {
    /// -8 to 7.
    Four,
    /// -127 to 127.
    Eight,
}

impl Bits {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Four, Self::Eight];

    /// How many.
    pub fn count(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// Bytes of a row of a panel.
    pub(crate) fn row(self) -> usize {
        PANEL * self.count() / 8
    }
}

/// The sizes of a quantized matrix `[k, n]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Bits of a number.
    pub bits: Bits,
    /// Rows: the inputs of a product.
    pub k: usize,
    /// Columns: its outputs.
    pub n: usize,
}

impl Sizes {
    /// Panels of columns, the last one filled up.
    pub fn panels(self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Groups of rows, the last one of fewer perhaps.
    pub fn groups(self) -> usize {
        self.k.div_ceil(GROUP)
    }

    /// Bytes of the numbers: `[panels, k, row]`.
    pub fn numbers(self) -> usize {
        self.panels() * self.k * self.bits.row()
    }

    /// The scales: `[panels, groups, PANEL]`.
    pub fn scales(self) -> usize {
        self.panels() * self.groups() * PANEL
    }
}

/// A matrix `W [k, n]`: `W[i, j] = scale · q`, with the scale of column `j` in the group of row `i`.
///
/// Panels of [`PANEL`] columns follow one another. In a panel a row of 8-bit numbers has a byte for each column; one of
/// 4-bit numbers has `q + 8` of the first half of its columns in the low bits of its bytes, and of the second in the high bits.
#[derive(Debug, Clone, Copy)]
pub struct Quantized<'a> {
    /// The sizes.
    pub sizes: Sizes,
    /// The numbers.
    pub numbers: &'a [u8],
    /// The scales.
    pub scales: &'a [bf16],
}

impl Quantized<'_> {
    /// Checks the lengths.
    ///
    /// # Errors
    /// [`Error::Length`].
    pub fn check(&self) -> Result<(), Error> {
        expect_length("numbers", self.sizes.numbers(), self.numbers.len())?;
        expect_length("scales", self.sizes.scales(), self.scales.len())
    }

    /// The scales of a group of a panel.
    pub(crate) fn group(&self, panel: usize, group: usize) -> &[bf16] {
        &self.scales[(panel * self.sizes.groups() + group) * PANEL..][..PANEL]
    }

    /// The numbers of `count` rows of a panel, from row `first` on.
    pub(crate) fn rows(&self, panel: usize, first: usize, count: usize) -> &[u8] {
        let bytes = self.sizes.bits.row();
        &self.numbers[(panel * self.sizes.k + first) * bytes..][..count * bytes]
    }

    /// Writes column `j`: the row of a table that is stored as its transpose.
    ///
    /// # Panics
    /// For a column that is not there, or a slice that has not `k` elements.
    pub fn column(&self, j: usize, to: &mut [f32]) {
        let (panel, place) = (j / PANEL, j % PANEL);
        for (i, to) in to.iter_mut().enumerate() {
            let (row, scale) = (self.rows(panel, i, 1), self.group(panel, i / GROUP)[place]);
            let q = match self.sizes.bits {
                Bits::Eight => i32::from(row[place] as i8),
                Bits::Four if place < PANEL / 2 => i32::from(row[place] & 15) - 8,
                Bits::Four => i32::from(row[place - PANEL / 2] >> 4) - 8,
            };
            *to = q as f32 * scale.to_f32();
        }
    }
}

/// Numbers and scales of a matrix, `[k, n]`, whose elements `at` gives by row and column.
///
/// Each scale makes the largest number of its group the largest integer; of 4 bits that with its sign is -8. A group with a number
/// that is not finite has a scale of NaN.
pub fn quantize(sizes: Sizes, at: impl Fn(usize, usize) -> f32 + Sync) -> (Vec<u8>, Vec<bf16>) {
    let Sizes { bits, k, n } = sizes;
    let mut numbers = vec![0; sizes.numbers()];
    let mut scales = vec![bf16::ZERO; sizes.scales()];
    if k == 0 || n == 0 {
        return (numbers, scales);
    }
    let panels = numbers.par_chunks_mut(k * bits.row());
    let panels = panels.zip(scales.par_chunks_mut(sizes.groups() * PANEL));
    panels.enumerate().for_each(|(panel, (numbers, scales))| {
        let columns = panel * PANEL..n.min((panel + 1) * PANEL);
        let groups = numbers.chunks_mut(GROUP * bits.row());
        for (group, (numbers, scales)) in groups.zip(scales.chunks_exact_mut(PANEL)).enumerate() {
            let mut values = [[0.0; PANEL]; GROUP];
            let rows = numbers.len() / bits.row();
            for (i, values) in values[..rows].iter_mut().enumerate() {
                for (value, column) in values.iter_mut().zip(columns.clone()) {
                    *value = at(group * GROUP + i, column);
                }
            }
            let units = units(bits, &values[..rows], scales);
            for (row, values) in numbers.chunks_exact_mut(bits.row()).zip(&values) {
                encode(bits, values, &units, row);
            }
        }
    });
    (numbers, scales)
}

/// Writes the scales of a group, and returns their inverses.
fn units(bits: Bits, values: &[[f32; PANEL]], scales: &mut [bf16]) -> [f32; PANEL] {
    let (mut largest, mut finite) = ([0.0f32; PANEL], [0.0; PANEL]);
    for values in values {
        for ((largest, finite), x) in largest.iter_mut().zip(&mut finite).zip(values) {
            *largest = if x.abs() > largest.abs() {
                *x
            } else {
                *largest
            };
            // NaN from infinity and NaN.
            *finite += x * 0.0;
        }
    }
    let mut units = [0.0; PANEL];
    for (place, unit) in units.iter_mut().enumerate() {
        let scale = finite[place]
            + match bits {
                Bits::Eight => largest[place].abs() / 127.0,
                Bits::Four => largest[place] / -8.0,
            };
        scales[place] = match scale.is_nan() {
            true => bf16::NAN,
            // Away from 0, so that the largest number fits.
            false => bf16::from_bits((scale.to_bits().wrapping_add(0xffff) >> 16) as u16),
        };
        *unit = match scale == 0.0 {
            true => 0.0,
            false => scales[place].to_f32().recip(),
        };
    }
    units
}

/// The integers of a row, each in units of its scale.
fn encode(bits: Bits, values: &[f32; PANEL], units: &[f32; PANEL], to: &mut [u8]) {
    // Rounded to even where it is added to this: the integer is in the low bits.
    const ROUND: f32 = (3 << 22) as f32;
    let integer = |place: usize, least: f32, most: f32| {
        let scaled = (values[place] * units[place]).clamp(least, most);
        (scaled + ROUND).to_bits().wrapping_sub(ROUND.to_bits())
    };
    match bits {
        Bits::Eight => {
            for (place, to) in to.iter_mut().enumerate() {
                *to = integer(place, -127.0, 127.0) as u8;
            }
        }
        Bits::Four => {
            let number = |place: usize| (integer(place, -8.0, 7.0).wrapping_add(8) & 15) as u8;
            for (place, to) in to.iter_mut().enumerate() {
                *to = number(place) | number(place + PANEL / 2) << 4;
            }
        }
    }
}
