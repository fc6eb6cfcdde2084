//! The divergence of prior and posterior.

use burn::tensor::Tensor;

use super::Rssm;

/// The divergence `KL(posterior ‖ prior)` in nats, summed over the categoricals of a state, in f32.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KlLoss {
    /// The mean over all states, each at least the free nats, `[1]`. Gradients flow to the prior alone.
    pub dynamics: Tensor<1>,
    /// The same value, `[1]`. Gradients flow to the posterior alone.
    pub representation: Tensor<1>,
    /// The divergence of every state, `[B, T]`, without free nats and without gradients.
    pub divergence: Tensor<2>,
}

impl KlLoss {
    /// `dynamics + 0.1 representation`, as the paper weights them.
    pub fn total(&self) -> Tensor<1> {
        self.dynamics.clone() + self.representation.clone() * 0.1
    }
}

impl Rssm {
    /// The losses of posterior and prior logits `[B, T, stoch · classes]`; NaN where there are no states.
    pub fn kl(&self, posterior: Tensor<3>, prior: Tensor<3>, free_nats: f64) -> KlLoss {
        let [batch, steps, _] = posterior.dims();
        let split = |x: Tensor<3>| x.reshape([batch, steps, self.stoch, self.classes]);
        let (posterior, prior) = (split(posterior), split(prior));
        let divergence = |posterior: Tensor<4>, prior: Tensor<4>| -> Tensor<2> {
            let p = self.probabilities(posterior.clone());
            let apart = self.log_probabilities(posterior) - self.log_probabilities(prior);
            (p * apart)
                .reshape([batch, steps, self.stoch * self.classes])
                .sum_dim(2)
                .squeeze_dim(2)
        };
        let free = |x: Tensor<2>| x.clamp_min(free_nats).mean();
        let dynamics = divergence(posterior.clone().detach(), prior.clone());
        let representation = divergence(posterior, prior.detach());
        KlLoss {
            divergence: dynamics.clone().detach(),
            dynamics: free(dynamics),
            representation: free(representation),
        }
    }
}
