//! The reference, in `f64`. Rows of `vocab` logits.

/// The results of [`forward`].
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// The mean over the rows that count.
    pub loss: f64,
    /// `log Σ exp x` of each row.
    pub lse: Vec<f64>,
    /// 1 over the number of rows that count.
    pub weight: f64,
}

/// The loss.
pub fn forward(x: &[f64], vocab: usize, targets: &[i64]) -> Loss {
    let lse: Vec<f64> = x
        .chunks(vocab)
        .map(|x| {
            let max = x.iter().fold(f64::NEG_INFINITY, |max, &x| max.max(x));
            max + x.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
        })
        .collect();
    let row = |(n, &target): (usize, &i64)| match usize::try_from(target) {
        Ok(target) if target < vocab => Some(lse[n] - x[n * vocab + target]),
        Ok(_) => Some(f64::NAN),
        Err(_) => None,
    };
    let losses: Vec<f64> = targets.iter().enumerate().filter_map(row).collect();
    let weight = 1.0 / losses.len() as f64;
    Loss {
        loss: losses.iter().sum::<f64>() / losses.len() as f64,
        lse,
        weight,
    }
}

/// `∂L/∂x` from `∂L/∂loss`.
pub fn backward(x: &[f64], vocab: usize, targets: &[i64], d_loss: f64) -> Vec<f64> {
    let Loss { lse, weight, .. } = forward(x, vocab, targets);
    let mut d_x = Vec::with_capacity(x.len());
    for (n, x) in x.chunks(vocab).enumerate() {
        let scale = if targets[n] < 0 { 0.0 } else { d_loss * weight };
        d_x.extend(x.iter().enumerate().map(|(v, x)| {
            let hit = f64::from(u8::from(targets[n] == v as i64));
            ((x - lse[n]).exp() - hit) * scale
        }));
    }
    d_x
}
