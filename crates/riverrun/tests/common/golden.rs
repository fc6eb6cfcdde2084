//! Reading the golden values.

use burn::tensor::{Device, Tensor, TensorData};
use serde_json::Value;

/// A list of numbers.
pub fn field(case: &Value, name: &str) -> Vec<f64> {
    let list = case[name].as_array().expect("a list");
    list.iter().map(|x| x.as_f64().expect("a number")).collect()
}

/// A list of numbers as a tensor.
pub fn tensor<const D: usize>(
    case: &Value,
    name: &str,
    shape: [usize; D],
    device: &Device,
) -> Tensor<D> {
    let data: Vec<f32> = field(case, name).into_iter().map(|x| x as f32).collect();
    Tensor::from_data(TensorData::new(data, shape), device)
}
