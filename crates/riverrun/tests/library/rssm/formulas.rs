//! States, losses and gradients against the published formulas in numpy.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Bool, Device, Tensor, TensorData};
use riverrun::Sequence;
use riverrun::nn::{Rssm, RssmConfig, RssmState};
use serde_json::Value;

use super::FORMS;
use crate::common::{assert_close, devices, numbers};
use crate::golden::{field, tensor};
use crate::key;
use crate::parameters::parameters;

fn cases() -> Value {
    serde_json::from_str(include_str!("../../golden/rssm.json")).expect("golden values")
}

/// The path of a parameter, from the names that the module's fields have.
#[derive(Default)]
struct Path(Vec<String>);

impl Path {
    fn name(&self) -> String {
        self.0.join(".")
    }
}

/// Puts the golden weights in their places.
struct Load<'a> {
    weights: &'a Value,
    device: &'a Device,
    path: Path,
    loaded: usize,
}

impl ModuleMapper for Load<'_> {
    fn enter_module(&mut self, name: &str, _kind: &str) {
        self.path.0.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _kind: &str) {
        self.path.0.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let weight = &self.weights[self.path.name()];
        let shape: Vec<usize> = field(weight, "shape").iter().map(|x| *x as usize).collect();
        assert_eq!(shape, param.dims(), "{}", self.path.name());
        self.loaded += 1;
        let shape: [usize; D] = shape.try_into().expect("as many dimensions");
        Param::from_tensor(tensor(weight, "values", shape, self.device).require_grad())
    }
}

fn size(case: &Value, name: &str) -> usize {
    case["sizes"][name].as_u64().expect("a size") as usize
}

fn config(case: &Value) -> RssmConfig {
    RssmConfig::new(size(case, "tokens"), size(case, "actions"))
        .with_deter(size(case, "deter"))
        .with_hidden(size(case, "hidden"))
        .with_stoch(size(case, "stoch"))
        .with_classes(size(case, "classes"))
        .with_blocks(size(case, "blocks"))
}

#[test]
fn states_losses_and_gradients_are_those_of_the_formulas() {
    let case = cases();
    let free = case["free_nats"].as_f64().unwrap();
    let sizes = ["batch", "steps", "tokens", "actions", "deter"].map(|name| size(&case, name));
    let [batch, steps, tokens, actions, deter] = sizes;
    let logits = size(&case, "stoch") * size(&case, "classes");
    let runs = devices().into_iter().flat_map(|(name, device)| {
        FORMS.map(|form| (format!("{name} {form:?}"), device.clone(), form))
    });
    for (name, device, form) in runs {
        let device = device.autodiff();
        let mut load = Load {
            weights: &case["weights"],
            device: &device,
            path: Path::default(),
            loaded: 0,
        };
        let model: Rssm = config(&case).init(&device).map(&mut load);
        assert_eq!(load.loaded, case["weights"].as_object().unwrap().len());
        let words: Vec<i32> = field(&case, "key").iter().map(|x| *x as i32).collect();
        let key = key(words.try_into().unwrap(), &device);
        let resets: Vec<bool> = case["resets"]
            .as_array()
            .unwrap()
            .iter()
            .map(|x| x.as_bool().unwrap())
            .collect();
        let resets = Tensor::<2, Bool>::from_data(TensorData::new(resets, [batch, steps]), &device);
        let state = RssmState::new(
            tensor(&case, "deter0", [batch, deter], &device),
            tensor(&case, "stoch0", [batch, logits], &device),
        );
        let observed = form.observe(
            &model,
            tensor(&case, "tokens", [batch, steps, tokens], &device),
            tensor(&case, "actions", [batch, steps, actions], &device),
            key.clone(),
            Sequence::from(Some(state)).with_reset(resets),
        );
        let check = |what: &str, found: Tensor<3>, expected: &Value, field_name: &str| {
            let what = format!("{name} {what}");
            assert_close(&what, &numbers(found), &field(expected, field_name), 2e-5);
        };
        check("deter", observed.deter.clone(), &case, "deter");
        assert_eq!(
            numbers(observed.stoch.clone()),
            field(&case, "stoch"),
            "{name}"
        );
        check(
            "posterior",
            observed.posterior_logits.clone(),
            &case,
            "posterior",
        );
        check("prior", observed.prior_logits.clone(), &case, "prior");

        let kl = observed.kl(&model, free);
        let one = |x: &Tensor<1>| numbers(x.clone())[0];
        let number = |name: &str| case[name].as_f64().unwrap();
        assert_close(&name, &[one(&kl.dynamics)], &[number("dynamics")], 2e-5);
        let found = one(&kl.representation);
        assert_close(&name, &[found], &[number("representation")], 2e-5);
        let target = tensor(&case, "target", [batch, steps, logits], &device);
        let states = (observed.deter.clone() * observed.deter.clone()).mean()
            + (observed.stoch.clone() * target).mean();
        let total = kl.total() + states;
        assert_close(&name, &[one(&total)], &[number("total")], 2e-5);
        let gradients = total.backward();
        for (parameter, found) in parameters(&model, Some(&gradients)) {
            let expected = field(&case["gradients"], &parameter);
            assert_close(&format!("{name} d {parameter}"), &found, &expected, 1e-5);
        }

        let given = tensor(&case, "actions", [batch, steps, actions], &device);
        let imagined = model.imagine(given.clone(), key.clone(), observed.last.clone());
        let expected = &case["imagined"];
        check("imagined deter", imagined.deter.clone(), expected, "deter");
        check(
            "imagined prior",
            imagined.prior_logits.clone(),
            expected,
            "prior",
        );
        assert_eq!(
            numbers(imagined.stoch.clone()),
            field(expected, "stoch"),
            "{name}"
        );
        // A policy that takes the same actions leads through the same states.
        let policy = |t: usize, _: &RssmState| given.clone().narrow(1, t, 1).squeeze_dim(1);
        let led = model.imagine_with(policy, steps, key, observed.last);
        assert_eq!(numbers(led.deter), numbers(imagined.deter), "{name}");
        assert_eq!(numbers(led.actions), numbers(given), "{name}");
    }
}
