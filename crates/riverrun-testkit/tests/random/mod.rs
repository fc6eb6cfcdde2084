//! Random numbers by counter: known values, and the same ones on a GPU.

use riverrun_kernels::random::cpu;

fn numbers(key: [u32; 4], stream: u32, n: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; n];
    cpu::uniform(key, stream, &mut out);
    out
}

#[test]
fn known_values() {
    // By the formulas in 20 lines of Python.
    let expected: [f64; 4] = [
        7884682.5 / 8_388_608.0,
        970419.5 / 8_388_608.0,
        5464336.5 / 8_388_608.0,
        276523.5 / 8_388_608.0,
    ];
    let found = numbers([1, 2, 3, 4], 5, 4);
    assert_eq!(found, expected.map(|x| x as f32));
}

#[cfg(feature = "gpu")]
#[test]
fn a_gpu_gives_the_same_numbers() {
    use riverrun_kernels::gpu::Dtype;
    use riverrun_kernels::random::gpu;
    use riverrun_testkit::check::transfer::{download, poison};

    let Some(client) = crate::device::client() else {
        return;
    };
    for n in [0, 1, 255, 256, 257, 100_000] {
        let key = [7_u32, u32::MAX, 0x8000_0000, 1];
        let buffer = client.create_from_slice(bytemuck::cast_slice(&key));
        let out = poison(&client, Dtype::F32, n);
        gpu::uniform(&client, &buffer, 9, &out, n).unwrap();
        let found: Vec<f32> = download(&client, Dtype::F32, out, n)
            .into_iter()
            .map(|x| x as f32)
            .collect();
        assert_eq!(found, numbers(key, 9, n));
    }
}
