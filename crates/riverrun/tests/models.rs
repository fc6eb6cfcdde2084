//! The language model: chunks and steps against the whole, and a saved model against the one that was saved.

mod common;

use burn::module::{Module, ModuleVisitor, Param};
use burn::store::ModuleRecord;
use burn::tensor::{Int, Tensor, TensorData};
use common::{assert_close, devices, numbers};
use riverrun::models::{CellKind, LanguageModel, LanguageModelConfig};
use riverrun::nn::Sequence;

#[test]
fn chunks_and_steps_agree_with_the_whole() {
    for (name, device) in devices() {
        for cell in CellKind::ALL {
            let model = LanguageModelConfig::new(11, 16, 2)
                .with_cell(cell)
                .with_expansion(2)
                .init(&device);
            let tokens: Vec<i32> = (0..2 * 40).map(|i| i * 7 % 11).collect();
            let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [2, 40]), &device);
            let (whole, _) = model.forward(tokens.clone(), Sequence::new());
            let (first, state) = model.forward(tokens.clone().narrow(1, 0, 33), Sequence::new());
            let (second, _) =
                model.forward(tokens.clone().narrow(1, 33, 7), Sequence::from(Some(state)));
            let chunked = numbers(Tensor::cat(vec![first, second], 1));
            assert_close(
                &format!("{name} {cell} chunks"),
                &chunked,
                &numbers(whole.clone()),
                1e-5,
            );
            let mut state = None;
            for t in 0..5 {
                let (logits, next) =
                    model.step(tokens.clone().narrow(1, t, 1).squeeze_dim(1), state);
                let expected = numbers(whole.clone().narrow(1, t, 1));
                assert_close(
                    &format!("{name} {cell} step {t}"),
                    &numbers(logits),
                    &expected,
                    1e-5,
                );
                state = Some(next);
            }
        }
    }
}

/// Every weight of a model, one after the other.
fn weights(model: &LanguageModel) -> Vec<f64> {
    struct All(Vec<f64>);
    impl ModuleVisitor for All {
        fn visit_float<const D: usize>(&mut self, weight: &Param<Tensor<D>>) {
            self.0.extend(numbers(weight.val()));
        }
    }
    let mut all = All(Vec::new());
    model.visit(&mut all);
    all.0
}

#[test]
fn a_saved_model_opens_again_with_the_same_outputs() {
    let folder = std::env::temp_dir().join(format!("riverrun-models-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    for (name, device) in devices() {
        let config = LanguageModelConfig::new(11, 16, 2).with_cell(CellKind::MinLstm);
        let model = config.init(&device);
        let tokens =
            Tensor::<2, Int>::from_data(TensorData::new(vec![3, 1, 4, 1, 5], [1, 5]), &device);
        let (before, _) = model.forward(tokens.clone(), Sequence::new());
        let kept = weights(&model);
        let path = folder.join(format!("{}.bpk", name.replace(':', "-")));
        model.into_record().save(&path).expect("saving");
        let record = ModuleRecord::load(&path).expect("loading");
        let again = config
            .init(&device)
            .try_load_record(record)
            .expect("the same shapes");
        assert_close(&name, &weights(&again), &kept, 0.0);
        // While another thread tunes a product, this one takes the first kernel there is, which may sum in another order.
        let (after, _) = again.forward(tokens, Sequence::new());
        assert_close(&name, &numbers(after), &numbers(before), 1e-5);
    }
    std::fs::remove_dir_all(&folder).expect("removing the temporary folder");
}
