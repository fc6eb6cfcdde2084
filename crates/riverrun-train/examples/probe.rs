//! x
use riverrun_train::*; use riverrun_train::tasks::*;
struct P(std::time::Instant, String);
impl Observer for P { fn report(&mut self, r: &Report) { if r.split == Split::Validation || r.step % 50 == 0 { eprintln!("{}{:6.1}s step {} {} loss {:.4} acc {:.2} {:.1} ktok/s", self.1, self.0.elapsed().as_secs_f64(), r.step, r.split, r.loss, 100.0*r.accuracy.unwrap_or(0.0), r.tokens_per_s/1e3) } } }
fn main() {
    unsafe { mallopt(-4, 0); mallopt(-1, i32::MAX); mallopt(-2, 64<<20); }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let device = riverrun::device::parse("cpu").unwrap();
    let mut config = if args[0] == "copy" { RunConfig::selective_copy() } else { let s = vec![args[0].clone()]; RunConfig::text(s.clone(), &Corpus::read(&s).unwrap(), 0.9) };
    let mut out = "/tmp/t/probe".to_string();
    for a in &args[1..] {
        let (k, v) = a.split_once('=').unwrap();
        if k == "out" { out = v.into(); continue }
        if k == "steps" { config.training.set_steps(v.parse().unwrap()); continue }
        let mut j = serde_json::to_value(&config).unwrap();
        *j.pointer_mut(k).expect("key") = serde_json::from_str(v).unwrap_or(serde_json::Value::String(v.into()));
        config = serde_json::from_value(j).unwrap();
    }
    let _ = std::fs::remove_dir_all(&out);
    let task = tasks::open(&config).unwrap();
    let t = Trainer::create(config, task, RunDir::create(&out).unwrap(), &device).unwrap();
    let r = t.run(&mut P(std::time::Instant::now(), args[1..].join(" ") + " "), &Default::default()).unwrap();
    println!("{:?}", r.last_validation);
}
unsafe extern "C" { fn mallopt(a: i32, b: i32) -> i32; }
