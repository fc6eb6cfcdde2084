//! Digits drawn from a seed, for machines without a data set.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::{PIXELS, SIDE};

/// Seven rows of five pixels for each digit, the leftmost pixel in bit 4.
const GLYPHS: [[u8; 7]; 10] = [
    [
        0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110,
    ],
    [
        0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110,
    ],
    [
        0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111,
    ],
    [
        0b11110, 0b00001, 0b00001, 0b01110, 0b00001, 0b00001, 0b11110,
    ],
    [
        0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010,
    ],
    [
        0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110,
    ],
    [
        0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110,
    ],
    [
        0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000,
    ],
    [
        0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110,
    ],
    [
        0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100,
    ],
];

/// Draws a digit: its glyph turned by up to 15°, sheared, stretched and moved at random, in a random strength, with noise over
/// it. Pixels are 0 to 1.
pub(super) fn draw(digit: usize, rng: &mut ChaCha8Rng) -> [f32; PIXELS] {
    let mut between = |low: f32, high: f32| rng.random_range(low..high);
    let (sin, cos) = between(-0.26, 0.26).sin_cos();
    let shear = between(-0.2, 0.2);
    let (wide, high) = (between(0.30, 0.42), between(0.30, 0.42));
    let (right, down) = (between(-3.0, 3.0), between(-3.0, 3.0));
    let strength = between(0.7, 1.0);
    let middle = (SIDE as f32 - 1.0) / 2.0;
    std::array::from_fn(|pixel| {
        let (x, y) = (
            (pixel % SIDE) as f32 - middle - right,
            (pixel / SIDE) as f32 - middle - down,
        );
        let (x, y) = (cos * x + sin * y, cos * y - sin * x);
        let ink = sample(digit, (x + shear * y) * wide + 2.0, y * high + 3.0);
        let noise = rng.random_range(-0.1..0.1);
        (strength * ink + noise).clamp(0.0, 1.0)
    })
}

/// The glyph at a point between its pixels, by bilinear interpolation.
fn sample(digit: usize, x: f32, y: f32) -> f32 {
    let (left, top) = (x.floor(), y.floor());
    let pixel = |column: f32, row: f32| {
        let inside = (0.0..5.0).contains(&column) && (0.0..7.0).contains(&row);
        let lit = inside && GLYPHS[digit][row as usize] >> (4 - column as usize) & 1 == 1;
        f32::from(u8::from(lit))
    };
    let (right, below) = (x - left, y - top);
    let row = |row| (1.0 - right) * pixel(left, row) + right * pixel(left + 1.0, row);
    (1.0 - below) * row(top) + below * row(top + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn digits_differ_and_come_back() {
        let drawn = |digit, seed| draw(digit, &mut ChaCha8Rng::seed_from_u64(seed));
        for digit in 0..10 {
            let image = drawn(digit, 7);
            assert_eq!(image, drawn(digit, 7));
            assert!(image.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
            let ink: f32 = image.iter().sum();
            assert!((30.0..300.0).contains(&ink), "{digit}: {ink}");
            assert_ne!(image, drawn(digit, 8));
            assert_ne!(image, drawn((digit + 1) % 10, 7));
        }
    }
}
