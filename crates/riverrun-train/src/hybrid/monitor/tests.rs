use super::*;

/// A monitor that has seen 60 losses around 2 with a deviation of about 0.1, falling and rising slowly.
fn settled() -> (HybridConfig, Monitor) {
    let (config, mut monitor) = (HybridConfig::default(), Monitor::default());
    for step in 0..60 {
        let loss = 2.0 + 0.14 * (f64::from(step) / 5.0).sin();
        let finding = monitor.observe(&config, &[loss], &[1.0], None);
        assert_eq!(finding.level, Level::Normal, "{finding:?}");
    }
    (config, monitor)
}

#[test]
fn levels_of_the_loss() {
    for (loss, level) in [
        (2.1, Level::Normal),
        (2.0 + 0.1 * 2.4, Level::Caution),
        (2.0 + 0.1 * 4.0, Level::Warning),
        (2.0 + 0.1 * 8.0, Level::Critical),
        (0.1, Level::Normal),
        (f64::NAN, Level::Critical),
        (f64::INFINITY, Level::Critical),
    ] {
        let (config, mut monitor) = settled();
        let found = monitor.observe(&config, &[loss], &[1.0], None);
        assert_eq!(found.level, level, "{loss}: {found:?}");
        assert_eq!(found.broken, !loss.is_finite());
    }
}

#[test]
fn levels_of_gradients_and_predictions() {
    for (gradient, error, level) in [
        (1.0, None, Level::Normal),
        (150.0, None, Level::Warning),
        (1500.0, None, Level::Critical),
        (1e-3, None, Level::Caution),
        (f64::NAN, None, Level::Critical),
        (1.0, Some(0.1), Level::Normal),
        (1.0, Some(0.3), Level::Caution),
        (1.0, Some(0.6), Level::Warning),
        (1.0, Some(f64::NAN), Level::Warning),
    ] {
        let (config, mut monitor) = settled();
        let found = monitor.observe(&config, &[2.0], &[gradient], error);
        assert_eq!(found.level, level, "{gradient} {error:?}: {found:?}");
    }
}

#[test]
fn an_oscillating_loss_is_a_caution() {
    let (config, mut monitor) = (HybridConfig::default(), Monitor::default());
    let mut last = Level::Normal;
    for step in 0..40 {
        let loss = 2.0 + if step % 2 == 0 { 0.1 } else { -0.1 };
        last = monitor.observe(&config, &[loss], &[], None).level;
    }
    assert_eq!(last, Level::Caution);
}

#[test]
fn the_third_warning_in_a_row_is_critical() {
    let (config, mut monitor) = settled();
    let mut level = || monitor.observe(&config, &[2.4], &[1.0], None).level;
    assert_eq!(
        [level(), level(), level()],
        [Level::Warning, Level::Warning, Level::Critical]
    );
}

#[test]
fn a_diverging_loss_does_not_move_its_baseline() {
    let (config, mut monitor) = settled();
    let before = (monitor.loss, monitor.gradient);
    for _ in 0..100 {
        monitor.observe(&config, &[1e6], &[1e9], None);
        monitor.observe(&config, &[f64::NAN], &[f64::NAN], None);
    }
    assert_eq!((monitor.loss, monitor.gradient), before);
}

#[test]
fn recoveries_escalate() {
    use Recovery::*;
    let recoveries = |testing: bool, loss: f64| {
        let (config, mut monitor) = settled();
        let mut next = || {
            let finding = monitor.observe(&config, &[loss], &[], None);
            monitor.recovery(&finding, testing, false)
        };
        [next(), next(), next(), next(), next(), next()]
    };
    let rest = ResetPredictor;
    let taken_back = [RollBack, RaiseConfidence, rest, rest, rest, rest];
    assert_eq!(recoveries(true, f64::NAN), taken_back);
    assert_eq!(recoveries(true, 1e6), taken_back);
    let [skipped @ .., last] = recoveries(false, f64::NAN);
    assert_eq!((skipped, last), ([SkipBatch; 5], Abort));
    assert_eq!(recoveries(false, 1e6), [ForceFull; 6]);
    assert_eq!(recoveries(true, 2.24)[0], ReducePredictions);
    assert_eq!(recoveries(true, 2.0), [Continue; 6]);

    let (config, mut monitor) = settled();
    let finding = monitor.observe(&config, &[2.0], &[], None);
    assert_eq!(monitor.recovery(&finding, true, true), RollBack);
    assert_eq!(monitor.failures(), 1);
    for _ in 0..QUIET {
        monitor.recovery(&finding, false, false);
    }
    assert_eq!(monitor.failures(), 0);
}
