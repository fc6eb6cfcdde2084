//! The order of a model's parameters in one vector, and this rank's part of it.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use riverrun::training::{FlatTensor, from_flat, to_flat};

use crate::Error;

/// Parameters with a gradient one after another, those that decay first, in a vector with a part for every rank.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    starts: HashMap<ParamId, usize>,
    /// Where those that do not decay begin, and where they end.
    bounds: [usize; 2],
    /// The length of a part; the last ends after the last parameter.
    part: usize,
    /// The elements of all parts before this rank's.
    before: usize,
}

impl Layout {
    pub fn of<M: Module>(model: &M, gradients: &GradientsParams, rank: usize, size: usize) -> Self {
        struct Sizes<'a>(&'a GradientsParams, [Vec<(ParamId, usize)>; 2]);
        impl ModuleVisitor for Sizes<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(gradient) = self.0.get::<D>(param.id) {
                    let elements = gradient.dims().iter().product();
                    self.1[usize::from(D < 2)].push((param.id, elements));
                }
            }
        }
        let mut sizes = Sizes(gradients, Default::default());
        model.visit(&mut sizes);
        let (mut starts, mut end) = (HashMap::new(), 0);
        let bounds = sizes.1.map(|group| {
            for (id, elements) in group {
                starts.insert(id, end);
                end += elements;
            }
            end
        });
        let part = end.div_ceil(size);
        Self {
            starts,
            bounds,
            part,
            before: rank * part,
        }
    }

    /// The length of the whole vector.
    pub fn whole(&self, size: usize) -> usize {
        self.part * size
    }

    pub fn part(&self) -> usize {
        self.part
    }

    /// The places of this rank's elements in its part: those that decay, and those that do not.
    pub fn own(&self) -> [Range<usize>; 2] {
        let inside = |at: usize| at.clamp(self.before, self.before + self.part) - self.before;
        let [middle, end] = self.bounds.map(inside);
        [0..middle, middle..end]
    }

    /// Gradients as the whole vector, in f32.
    ///
    /// # Errors
    /// Gradients of other parameters than at the start.
    pub fn gradients<M: Module>(
        &self,
        model: &M,
        gradients: GradientsParams,
        size: usize,
        device: &Device,
    ) -> Result<Tensor<1>, Error> {
        struct Take<'a>(&'a Layout, GradientsParams, Vec<FlatTensor>, bool);
        impl ModuleVisitor for Take<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let start = self.0.starts.get(&param.id);
                match (self.1.remove::<D>(param.id), start) {
                    (Some(gradient), Some(start)) => {
                        self.2.push(flat(gradient.cast(FloatDType::F32), *start));
                    }
                    (None, None) => {}
                    _ => self.3 = true,
                }
            }
        }
        let mut take = Take(self, gradients, Vec::new(), false);
        model.visit(&mut take);
        if take.3 {
            let text = "a sharded optimizer needs gradients of the same parameters in every step";
            return Err(Error::Unsupported(text.into()));
        }
        self.vector(&take.2, self.whole(size), device)
    }

    /// The parameters of a module as the whole vector.
    pub fn parameters<M: Module>(
        &self,
        module: &M,
        size: usize,
        device: &Device,
    ) -> Result<Tensor<1>, Error> {
        struct Collect<'a>(&'a Layout, Vec<FlatTensor>);
        impl ModuleVisitor for Collect<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(start) = self.0.starts.get(&param.id) {
                    self.1.push(flat(plain(param.val()), *start));
                }
            }
        }
        let mut collect = Collect(self, Vec::new());
        module.visit(&mut collect);
        self.vector(&collect.1, self.whole(size), device)
    }

    /// Tensors at their places in a vector; other places hold anything.
    fn vector(
        &self,
        tensors: &[FlatTensor],
        len: usize,
        device: &Device,
    ) -> Result<Tensor<1>, Error> {
        Ok(to_flat(
            tensors,
            Tensor::empty([len], (device, DType::F32)),
        )?)
    }

    /// This rank's part, of its pieces.
    pub fn joined(
        &self,
        pieces: [Option<&Tensor<1>>; 2],
        device: &Device,
    ) -> Result<Tensor<1>, Error> {
        let pieces = pieces.into_iter().zip(self.own());
        let pieces = pieces.filter_map(|(piece, place)| Some(flat(piece?.clone(), place.start)));
        self.vector(&pieces.collect::<Vec<_>>(), self.part, device)
    }

    /// A module with the parameters of a whole vector, in the memory where they are.
    pub fn put<M: Module>(&self, module: M, whole: &Tensor<1>) -> Result<M, Error> {
        let mut out = Out(self, Vec::new(), Vec::new());
        let module = module.map(&mut out);
        let tensors = from_flat(out.2, whole)?;
        Ok(module.map(&mut In(out.1.into_iter().zip(tensors).collect())))
    }
}

fn flat<const D: usize>(tensor: Tensor<D>, start: usize) -> FlatTensor {
    FlatTensor::new(tensor, start, 0).unwrap_or_else(riverrun::Error::raise)
}

fn plain<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match tensor.is_autodiff() {
        true => tensor.inner(),
        false => tensor,
    }
}

/// Takes parameters out, to be the only owner of each.
struct Out<'a>(&'a Layout, Vec<ParamId>, Vec<FlatTensor>);

impl ModuleMapper for Out<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(start) = self.0.starts.get(&param.id) else {
            return param;
        };
        let (id, tensor, mapper) = param.consume();
        let (autodiff, tracked) = (tensor.is_autodiff(), tensor.is_require_grad());
        let tensor = plain(tensor);
        let nothing = Tensor::empty([1; D], &tensor.device());
        self.1.push(id);
        self.2.push(flat(tensor, *start));
        let nothing = match autodiff {
            true => Tensor::from_inner(nothing).set_require_grad(tracked),
            false => nothing,
        };
        Param::from_mapped_value(id, nothing, mapper)
    }
}

/// Puts them back.
struct In(HashMap<ParamId, FlatTensor>);

impl ModuleMapper for In {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(tensor) = self.0.remove(&param.id) else {
            return param;
        };
        let (id, nothing, mapper) = param.consume();
        let tensor = tensor.into_tensor::<D>();
        let tensor = match nothing.is_autodiff() {
            true => Tensor::from_inner(tensor).set_require_grad(nothing.is_require_grad()),
            false => tensor,
        };
        Param::from_mapped_value(id, tensor, mapper)
    }
}
