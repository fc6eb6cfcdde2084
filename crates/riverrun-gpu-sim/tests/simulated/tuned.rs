//! A table of `riverrun tune`, which a process reads once: so in a process of its own.

use std::process::Command;

use riverrun_gpu_sim::simulated::client;
use riverrun_gpu_sim::simulated::plan::recorder;
use riverrun_kernels::gpu::Dtype;
use riverrun_kernels::recurrence::gpu::{Forward, Inputs, Strided, Tuning, forward};
use riverrun_kernels::recurrence::{Gate, Problem, Routine, Shape};
use riverrun_testkit::recurrence::check::{Case, Options, compare, naive};

const NAME: &str = "tuned::a_table_gives_launches_their_sizes";
const TABLE: &str = "riverrun tuning 1\ndevice none\nscan raw f32 forward 512 2:16:4:1:1\n";

#[test]
fn a_table_gives_launches_their_sizes() {
    if std::env::var_os("RIVERRUN_TUNING").is_some() {
        return under_the_table();
    }
    let file = std::env::temp_dir().join(format!("riverrun-{}.tuning", std::process::id()));
    std::fs::write(&file, TABLE).expect("a folder for temporary files");
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    let again = again.args(["--exact", NAME]).env("RIVERRUN_TUNING", &file);
    let output = again.output().expect("this program again");
    std::fs::remove_file(&file).expect("the file that was written");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

fn under_the_table() {
    let problem = Problem::new(Shape::new(1, 512, 64), Gate::Raw);
    let routine = Some(Routine::LookBack);
    let recorder = recorder();
    let cubes = |tuning: Option<Tuning>| {
        let bytes = problem.shape.elements() as u64 * 4;
        let plan = recorder.plan(&[bytes; 3], |client, handles| {
            let view = |index: usize| Strided {
                handle: handles[index].clone(),
                len: problem.shape.elements(),
                offset: 0,
                batch_stride: problem.shape.elements(),
                step_stride: problem.shape.dim,
            };
            let args = Forward {
                inputs: Inputs::Separate(vec![view(0), view(1)]),
                h0: None,
                reset: None,
                h: handles[2].clone(),
            };
            forward(client, &problem, Dtype::F32, &args, routine, tuning).map(|_| ())
        });
        let plan = plan.expect("a plan");
        plan.launches.last().expect("the scan").cubes[0]
    };
    // One tile of 32 pairs of channels, 64 steps each; by rule two tiles, 256 steps each.
    let rule = Tuning::default_for(&problem, Dtype::F32, false, Routine::LookBack);
    assert_eq!((cubes(None), cubes(Some(rule))), (8, 4));
    let case = Case::random(problem, Options::nth(0), 1).rounded::<f32>();
    let found = case.gpu(&client(), Dtype::F32, routine, None);
    let (truth, naive) = (case.oracle(), naive::run::<f32>(&case));
    for found in compare::<f32>(512, &found.expect("a problem it can run"), &naive, &truth) {
        assert!(found.passes(), "{found:?}");
    }
}
