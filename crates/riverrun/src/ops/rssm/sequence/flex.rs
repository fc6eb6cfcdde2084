//! The CPU has no kernel of all steps.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use riverrun_kernels::rssm::sequence::Problem;

use super::{RssmInputs, RssmSequenceOps, RssmWeights};

impl RssmSequenceOps for Flex {
    fn rssm_sequence(
        _inputs: RssmInputs<Self>,
        _weights: RssmWeights<Self>,
        _problem: Problem,
    ) -> FloatTensor<Self> {
        unreachable!("there is no such launch on the CPU, and none is asked for")
    }
}
