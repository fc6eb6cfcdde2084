//! What cannot be divided among ranks, and what a rank gets when another one fails.

use burn::tensor::{Device, Tensor};
use riverrun::nn::{
    GruConfig, LocalAttentionConfig, Mamba2Config, MinGruConfig, MultiHeadAttentionConfig,
    Recurrent,
};
use riverrun::{Error, Neighbours, Sequence};

use super::channels::{group, on_ranks};
use super::{differentiating, wave};
use crate::common::numbers;

fn second_of_two() -> Neighbours {
    Neighbours::new(group(2).remove(1))
}

#[track_caller]
fn refused<L: Recurrent>(layer: &L, steps: usize, state: Option<L::State>, reason: &str) {
    let sequence = Sequence::from(state).with_neighbours(second_of_two());
    let x = wave([2, steps, 8], 1);
    let Err(error) = layer.checked_run(x.clone(), sequence) else {
        panic!("{reason}: it ran");
    };
    assert!(error.to_string().contains(reason), "{error}");
    assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
}

#[test]
fn what_is_no_recurrence_from_first_to_last_is_refused() {
    let device = Device::flex();
    let attention = MultiHeadAttentionConfig::new(8, 2).init(&device);
    refused(
        &attention,
        4,
        None,
        "attention cannot be divided among ranks along time",
    );
    let local = LocalAttentionConfig::new(8, 2, 3).init(&device);
    refused(&local, 4, None, "attention cannot be divided");
    let reverse = MinGruConfig::new(8, 8).with_reverse(true).init(&device);
    refused(
        &reverse,
        4,
        None,
        "a recurrence in reverse cannot be divided",
    );
    let both = GruConfig::new(8, 8).with_bidirectional(true).init(&device);
    refused(&both, 4, None, "a bidirectional gru cannot be divided");
}

#[test]
fn a_piece_has_steps_and_no_state_of_its_own() {
    let device = Device::flex();
    let layer = MinGruConfig::new(8, 8).init(&device);
    refused(
        &layer,
        0,
        None,
        "rank 1 of 2 along time: a piece of the sequences has one step",
    );
    let state = Some(wave([2, 8], 2));
    refused(
        &layer,
        4,
        state,
        "rank 1 of 2 along time: the rank before has the initial state",
    );
    let mamba = Mamba2Config::new(8, 2, 4).init(&device);
    refused(&mamba, 0, None, "a piece of the sequences has one step");
}

#[test]
fn one_rank_is_alone() {
    let layer = MinGruConfig::new(8, 8)
        .with_reverse(true)
        .init(&Device::flex());
    let alone = Neighbours::new(group(1).remove(0));
    assert!(alone.is_first() && alone.is_last());
    let sequence = Sequence::new().with_neighbours(alone);
    let (found, _) = layer.run(wave([2, 4, 8], 1), sequence);
    let (expected, _) = layer.forward(wave([2, 4, 8], 1), None);
    assert_eq!(numbers(found), numbers(expected));
}

/// NaN comes out, and the error says why.
fn failed(neighbours: &Neighbours, y: Tensor<3>, reason: &str) {
    assert!(numbers(y).iter().all(|y| y.is_nan()));
    let error = neighbours.check().unwrap_err();
    assert!(error.to_string().contains(reason), "{error}");
    assert!(matches!(error, Error::HandOver(_)), "{error:?}");
}

#[test]
fn ranks_that_do_different_things_get_an_error() {
    on_ranks(2, |neighbours| {
        let sequence = Sequence::new().with_neighbours(neighbours.clone());
        let device = Device::flex();
        if neighbours.is_first() {
            let gru = MinGruConfig::new(8, 8).init(&device);
            gru.run(wave([2, 4, 8], 1), sequence);
            return neighbours.check().unwrap();
        }
        let layer = GruConfig::new(8, 8).init(&device);
        let (y, _) = layer.run(
            wave([2, 4, 8], 1),
            Sequence::new().with_neighbours(neighbours.clone()),
        );
        let reason = "this one waits for the state of hand-over 0, a cell, rank 0 of the group sent the state of hand-over \
                      0, a linear recurrence";
        failed(&neighbours, y, reason);
        // Nothing is asked of the other rank any more.
        let (y, _) = layer.run(
            wave([2, 4, 8], 1),
            Sequence::new().with_neighbours(neighbours.clone()),
        );
        failed(&neighbours, y, reason);
    });
}

#[test]
fn a_rank_that_has_ended_leaves_an_error_and_nan() {
    let neighbours = second_of_two();
    let layer = MinGruConfig::new(8, 8).init(&Device::flex());
    let sequence = Sequence::new().with_neighbours(neighbours.clone());
    let (y, _) = layer.run(wave([2, 4, 8], 1), sequence);
    failed(&neighbours, y, "rank 0: ");

    // In the backward pass.
    let gradients = on_ranks(2, |neighbours| {
        let sequence = Sequence::new().with_neighbours(neighbours.clone());
        let x = Tensor::from_inner(wave([2, 4, 8], 1)).require_grad();
        let layer = MinGruConfig::new(8, 8).init(&differentiating());
        let (y, _) = layer.run(x.clone(), sequence);
        neighbours.check().unwrap();
        // The second one ends here.
        neighbours.is_first().then(|| {
            let of = y.sum().backward();
            assert!(matches!(neighbours.check(), Err(Error::HandOver(_))));
            numbers(x.grad(&of).expect("a gradient"))
        })
    });
    assert!(gradients[0].as_ref().unwrap().iter().all(|d| d.is_nan()));
}

#[test]
fn a_rank_that_does_not_differentiate_gets_no_gradient() {
    let found = on_ranks(3, |neighbours| {
        let sequence = Sequence::new().with_neighbours(neighbours.clone());
        let device = match neighbours.rank() {
            0 => Device::flex(),
            _ => differentiating(),
        };
        let layer = MinGruConfig::new(8, 8).init(&device);
        let x = wave([2, 4, 8], 1);
        if neighbours.is_first() {
            layer.run(x, sequence);
            return neighbours.check().is_ok();
        }
        let (y, _) = layer.run(Tensor::from_inner(x), sequence);
        y.sum().backward();
        neighbours.check().is_ok()
    });
    assert_eq!(found, [true; 3]);
}
