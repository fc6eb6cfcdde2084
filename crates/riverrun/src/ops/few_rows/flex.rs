//! The CPU, which has no launches to save: everything is refused before it gets here.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

use super::{FewRowsOps, FewRowsSpec};
use crate::ops::support::Maybe;

impl FewRowsOps for Flex {
    fn few_rows(
        _x: FloatTensor<Self>,
        _gamma: Maybe<Self>,
        _weight: FloatTensor<Self>,
        _bias: Maybe<Self>,
        _added: Maybe<Self>,
        _spec: FewRowsSpec,
    ) -> FloatTensor<Self> {
        unreachable!("refused on the CPU")
    }

    fn few_rows_beside(
        _x: FloatTensor<Self>,
        _gamma: Maybe<Self>,
        _weight: FloatTensor<Self>,
        _second: FloatTensor<Self>,
        _third: FloatTensor<Self>,
        _spec: FewRowsSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("refused on the CPU")
    }

    fn few_rows_gated(
        _x: FloatTensor<Self>,
        _gamma: Maybe<Self>,
        _gate: FloatTensor<Self>,
        _up: FloatTensor<Self>,
        _spec: FewRowsSpec,
    ) -> FloatTensor<Self> {
        unreachable!("refused on the CPU")
    }

    fn few_rows_step(
        _x: FloatTensor<Self>,
        _gamma: Maybe<Self>,
        _weight: FloatTensor<Self>,
        _bias: Maybe<Self>,
        _state: FloatTensor<Self>,
        _spec: FewRowsSpec,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        unreachable!("refused on the CPU")
    }
}
