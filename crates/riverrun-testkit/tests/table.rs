//! Every operation of the table, in every storage type and form.

use riverrun_testkit::{OPERATIONS, Target, assert_right};

#[test]
fn operations_are_right_on_the_cpu() {
    for operation in OPERATIONS {
        assert_right(operation, &Target::cpu());
    }
}

#[cfg(feature = "gpu")]
#[test]
fn operations_are_right_on_a_gpu() {
    let Some(client) = crate::device::client() else {
        return;
    };
    let target = Target::gpu(client);
    // The others take minutes where the CPU imitates a GPU.
    for operation in OPERATIONS.iter().filter(|operation| operation.weight <= 1) {
        assert_right(operation, &target);
    }
}
