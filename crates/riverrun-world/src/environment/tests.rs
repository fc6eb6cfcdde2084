//! Every launcher, and what contradicts itself.

use super::*;

type Set<'a> = &'a [(&'a str, &'a str)];

fn place(sets: &[Set<'_>]) -> Result<Place> {
    let find = |name: &str| {
        sets.iter()
            .rev()
            .flat_map(|s| s.iter())
            .find(|(n, _)| *n == name)
    };
    Place::from_variables(&|name| find(name).map(|(_, value)| value.to_string()))
}

#[track_caller]
fn refused(sets: &[Set<'_>], words: &[&str]) {
    let text = place(sets).expect_err("must be refused").to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not name {word:?}");
    }
}

const TORCH: Set<'_> = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "node7"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "abc"),
];
const OWN: Set<'_> = &[
    ("RIVERRUN_RANK", "1"),
    ("RIVERRUN_WORLD_SIZE", "2"),
    ("RIVERRUN_LOCAL_RANK", "1"),
    ("RIVERRUN_LOCAL_WORLD_SIZE", "2"),
    ("RIVERRUN_ADDRESS", "127.0.0.1"),
    ("RIVERRUN_PORT", "4000"),
    ("RIVERRUN_RUN_ID", "mine"),
];
const OMPI: Set<'_> = &[
    ("OMPI_COMM_WORLD_RANK", "5"),
    ("OMPI_COMM_WORLD_SIZE", "8"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ("PMIX_NAMESPACE", "space"),
    ("PMIX_RANK", "5"),
];
const PMI: Set<'_> = &[
    ("PMI_RANK", "1"),
    ("PMI_SIZE", "2"),
    ("MPI_LOCALRANKID", "1"),
    ("MPI_LOCALNRANKS", "2"),
];
const SLURM: Set<'_> = &[
    ("SLURM_PROCID", "2"),
    ("SLURM_NTASKS", "5"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "1"),
    ("SLURM_TASKS_PER_NODE", "2(x2),1"),
    ("SLURM_JOB_ID", "70123"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_STEP_NODELIST", "node[07-09]"),
    ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"),
];
const PODS: Set<'_> = &[
    ("JOB_COMPLETION_INDEX", "2"),
    ("RIVERRUN_WORLD_SIZE", "3"),
    ("RIVERRUN_ADDRESS", "train-0.train"),
];

#[test]
fn nothing_set_is_a_single_process() {
    assert_eq!(place(&[]).unwrap(), Place::single());
    assert_eq!(
        place(&[&[("RANK", ""), ("WORLD_SIZE", " ")]]).unwrap(),
        Place::single()
    );
    assert_eq!(
        place(&[TORCH, &[("RIVERRUN_LAUNCHER", "none")]]).unwrap(),
        Place::single()
    );
    // Any indexed job, and a shell inside an allocation.
    assert_eq!(
        place(&[&[("JOB_COMPLETION_INDEX", "2")]]).unwrap(),
        Place::single()
    );
    assert_eq!(
        place(&[&[("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "1")]]).unwrap(),
        Place::single()
    );
}

#[test]
fn torchrun() {
    let p = place(&[TORCH]).unwrap();
    assert_eq!(
        (p.rank, p.size, p.local_rank, p.local_size),
        (3, 4, 1, Some(2))
    );
    assert_eq!(
        (p.launcher, p.addresses, p.port),
        (Launcher::Torch, vec!["node7".to_owned()], 29501)
    );
    assert!(p.run_id.contains("abc"));
    // A restart is another run.
    let again = place(&[TORCH, &[("TORCHELASTIC_RESTART_COUNT", "1")]]).unwrap();
    assert_ne!(p.run_id, again.run_id);
    assert_eq!((p.restarts, again.restarts), (0, 1));
    // One agent a node, started by srun: Slurm counts the agents.
    assert_eq!(place(&[SLURM, TORCH]).unwrap().rank, 3);
    assert_eq!(
        place(&[TORCH, &[("RIVERRUN_PORT", "77")]]).unwrap().port,
        77
    );
    assert_eq!(
        place(&[TORCH, &[("RIVERRUN_RUN_ID", "x")]]).unwrap().run_id,
        "x"
    );
}

#[test]
fn our_own_launcher_comes_first() {
    let p = place(&[TORCH, SLURM, OMPI, &[("JOB_COMPLETION_INDEX", "7")], OWN]).unwrap();
    assert_eq!(
        (p.rank, p.size, p.local_rank, p.local_size),
        (1, 2, 1, Some(2))
    );
    assert_eq!(
        (p.launcher, p.port, p.run_id.as_str()),
        (Launcher::Riverrun, 4000, "mine")
    );
}

#[test]
fn open_mpi() {
    let p = place(&[OMPI, &[("MASTER_ADDR", "head")]]).unwrap();
    assert_eq!(
        (p.rank, p.size, p.local_rank, p.local_size),
        (5, 8, 1, Some(4))
    );
    assert_eq!((p.launcher, p.port), (Launcher::OpenMpi, 29_400));
    assert!(p.run_id.contains("space"));
    refused(
        &[OMPI],
        &["OMPI_COMM_WORLD_RANK=5", "RIVERRUN_ADDRESS", "MASTER_ADDR"],
    );
    // Inside an allocation its nodes are known. The daemons' own SLURM_PROCID does not count.
    let p = place(&[SLURM, OMPI]).unwrap();
    assert_eq!(
        (p.rank, p.addresses),
        (5, vec!["node07".to_owned(), "10.0.0.1".to_owned()])
    );
    // All on one machine: no address is needed.
    let p = place(&[OMPI, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "8")]]).unwrap();
    assert_eq!(p.addresses, ["127.0.0.1"]);
}

#[test]
fn pmi() {
    let p = place(&[PMI]).unwrap();
    assert_eq!(
        (p.rank, p.size, p.local_rank, p.local_size),
        (1, 2, 1, Some(2))
    );
    assert_eq!(p.launcher, Launcher::Pmi);
    refused(&[&PMI[..2]], &["PMI_RANK=1", "local rank"]);
    // srun --mpi=pmi2: Slurm knows the local rank.
    let same = &[
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_LOCALID", "0"),
        ("MASTER_ADDR", "a"),
    ];
    assert_eq!(place(&[same, &PMI[..2]]).unwrap().local_rank, 0);
}

#[test]
fn slurm() {
    let p = place(&[SLURM]).unwrap();
    assert_eq!(
        (p.rank, p.size, p.local_rank, p.local_size),
        (2, 5, 0, Some(2))
    );
    assert_eq!((p.launcher, p.port), (Launcher::Slurm, 17_123));
    assert_eq!(p.addresses, ["node07", "10.0.0.1"]);
    assert!(p.run_id.contains("70123.0"));
    refused(
        &[SLURM, &[("SLURM_STEP_ID", "")]],
        &["SLURM_PROCID=2", "SLURM_NTASKS=5", "srun"],
    );
    refused(&[SLURM, &[("SLURM_STEP_NODELIST", "a[")]], &["a["]);
    let p = place(&[
        SLURM,
        &[("SLURM_STEP_ID", ""), ("RIVERRUN_LAUNCHER", "slurm")],
    ])
    .unwrap();
    assert_eq!(p.rank, 2);
}

#[test]
fn kubernetes() {
    let p = place(&[PODS]).unwrap();
    assert_eq!(
        (p.rank, p.size, p.local_rank, p.local_size),
        (2, 3, 0, Some(1))
    );
    assert_eq!(
        (p.launcher, p.addresses),
        (Launcher::Kubernetes, vec!["train-0.train".to_owned()])
    );
    refused(
        &[&PODS[..2]],
        &[
            "JOB_COMPLETION_INDEX=2",
            "RIVERRUN_WORLD_SIZE=3",
            "RIVERRUN_ADDRESS",
        ],
    );
    refused(
        &[PODS, &[("JOB_COMPLETION_INDEX", "3")]],
        &["JOB_COMPLETION_INDEX=3", "RIVERRUN_WORLD_SIZE=3"],
    );
}

#[test]
fn contradictions() {
    refused(&[&[("RANK", "1")]], &["RANK=1", "WORLD_SIZE"]);
    refused(&[&[("WORLD_SIZE", "2")]], &["WORLD_SIZE=2", "RANK"]);
    refused(
        &[&[("RIVERRUN_WORLD_SIZE", "2")]],
        &["RIVERRUN_WORLD_SIZE=2", "RIVERRUN_RANK"],
    );
    refused(&[TORCH, &[("RANK", "4")]], &["RANK=4", "WORLD_SIZE=4"]);
    refused(&[TORCH, &[("WORLD_SIZE", "0")]], &["WORLD_SIZE=0"]);
    refused(
        &[TORCH, &[("LOCAL_RANK", "2")]],
        &["LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"],
    );
    refused(
        &[TORCH, &[("LOCAL_WORLD_SIZE", "5")]],
        &["LOCAL_WORLD_SIZE=5", "WORLD_SIZE=4"],
    );
    refused(&[TORCH, &[("RANK", "-1")]], &["RANK=\"-1\""]);
    refused(
        &[TORCH, &[("MASTER_PORT", "65535")]],
        &["MASTER_PORT=65535"],
    );
    refused(&[TORCH, &[("MASTER_PORT", "")]], &["MASTER_PORT"]);
    refused(
        &[TORCH, &[("MASTER_ADDR", "")]],
        &["RIVERRUN_ADDRESS", "MASTER_ADDR"],
    );
    refused(
        &[TORCH, &[("RIVERRUN_LAUNCHER", "sge")]],
        &["RIVERRUN_LAUNCHER", "sge"],
    );
    refused(
        &[TORCH, &[("RIVERRUN_LAUNCHER", "mpi")]],
        &["RIVERRUN_LAUNCHER=mpi"],
    );
    // A RANK of nobody knows where, under mpirun or srun.
    for other in [OMPI, SLURM, PODS] {
        let by_hand: Set<'_> = &[("TORCHELASTIC_RUN_ID", ""), ("RIVERRUN_ADDRESS", "a")];
        refused(
            &[other, TORCH, by_hand],
            &["RANK=3", "WORLD_SIZE=4", other[0].0, "RIVERRUN_LAUNCHER"],
        );
    }
    let insists: Set<'_> = &[
        ("TORCHELASTIC_RUN_ID", ""),
        ("RIVERRUN_LAUNCHER", "slurm"),
        ("MASTER_PORT", ""),
    ];
    assert_eq!(place(&[SLURM, TORCH, insists]).unwrap().rank, 2);
}
