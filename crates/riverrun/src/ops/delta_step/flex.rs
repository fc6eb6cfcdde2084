//! The CPU, which has no launches to save: [`takes_delta_step`](super::takes_delta_step) keeps everything from here.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use riverrun_kernels::delta_step::Problem;

use super::DeltaStepOps;

impl DeltaStepOps for Flex {
    fn delta_step(
        _mixed: FloatTensor<Self>,
        _rates: FloatTensor<Self>,
        _gate: FloatTensor<Self>,
        _weight: FloatTensor<Self>,
        _a_log: FloatTensor<Self>,
        _dt_bias: FloatTensor<Self>,
        _gamma: FloatTensor<Self>,
        _inputs: FloatTensor<Self>,
        _states: FloatTensor<Self>,
        _problem: Problem,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("refused on the CPU")
    }
}
