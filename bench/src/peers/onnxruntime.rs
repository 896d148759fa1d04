//! ONNX Runtime in this process.
//!
//! One engine binds the cache as input and as output, so that the operator writes in place. The other calls
//! the plain `run()`, which makes a new cache in every step.

mod library;
mod model;

use bytemuck::Pod;
use kvscatter::ElementType;
use kvscatter_bench::{Call, Case, Engine, Failed, Form, Run, Scene, Unsupported, UpdateLayout};
use ort::environment::Environment;
use ort::session::{IoBinding, Session, SessionOutputs};
use ort::value::{PrimitiveTensorElementType, Tensor, TensorRef};

use self::model::{INPUTS, OUTPUT};
use super::limits::{check_own_memory, unsupported};

/// The loaded ONNX Runtime.
pub(super) struct Library {
    environment: Environment,
}

impl Library {
    /// Finds and loads the library. A process has only one.
    pub(super) fn load() -> Result<Self, String> {
        library::load().map(|environment| Self { environment })
    }

    pub(super) fn engines(&self) -> [Box<dyn Engine>; 2] {
        let environment = || self.environment.clone();
        [Box::new(Shared { environment: environment() }), Box::new(Plain { environment: environment() })]
    }
}

/// The engine that binds one buffer as past and as present.
struct Shared {
    environment: Environment,
}

/// The engine with a separate present.
struct Plain {
    environment: Environment,
}

impl Engine for Shared {
    fn name(&self) -> &str {
        "onnxruntime, shared buffer"
    }

    fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        if case.parameters().form == Form::Functional {
            return unsupported("is the in-place form");
        }
        fn bound<T: Element>(setup: Setup) -> Box<dyn Run> {
            Box::new(Bound::<T> { setup, tensors: None })
        }
        let make = by_element(case, [bound::<half::f16>, bound::<half::bf16>, bound::<f32>, bound::<i8>])?;
        Ok(make(Setup::new(&self.environment, case)?))
    }
}

impl Engine for Plain {
    fn name(&self) -> &str {
        "onnxruntime, run()"
    }

    fn prepare(&self, case: &Case, _: &Scene) -> Result<Box<dyn Run>, Unsupported> {
        fn copying<T: Element>(setup: Setup) -> Box<dyn Run> {
            Box::new(Copying { setup, element: std::marker::PhantomData::<T> })
        }
        let make =
            by_element(case, [copying::<half::f16>, copying::<half::bf16>, copying::<f32>, copying::<i8>])?;
        Ok(make(Setup::new(&self.environment, case)?))
    }
}

trait Element: Pod + PrimitiveTensorElementType + std::fmt::Debug {}

impl<T: Pod + PrimitiveTensorElementType + std::fmt::Debug> Element for T {}

type Make = fn(Setup) -> Box<dyn Run>;

fn by_element(case: &Case, [f16, bf16, f32, i8]: [Make; 4]) -> Result<Make, Unsupported> {
    match case.parameters().element {
        ElementType::Float16 => Ok(f16),
        ElementType::BFloat16 => Ok(bf16),
        ElementType::Float32 => Ok(f32),
        ElementType::Int8 => Ok(i8),
        other => unsupported(format!("is not set up here for {other}")),
    }
}

/// A session and its inputs' shapes.
struct Setup {
    session: Session,
    cache: Vec<usize>,
    update: Vec<usize>,
    starts: Vec<i64>,
    form: Form,
}

impl Setup {
    fn new(environment: &Environment, case: &Case) -> Result<Self, Unsupported> {
        check_own_memory(case, case.cache_bytes() + case.update_bytes())?;
        let parameters = case.parameters();
        if parameters.update != UpdateLayout::Dense {
            return unsupported("needs a contiguous update");
        }
        let model = model::tensor_scatter(parameters.axis, parameters.mode, parameters.element)
            .map_err(|error| Unsupported(error.to_string()))?;
        let session = || -> ort::Result<Session> {
            let mut builder = Session::builder(environment)?.with_intra_threads(1)?.with_inter_threads(1)?;
            builder.commit_from_memory(&model)
        };
        let session = session().map_err(|error| Unsupported(error.to_string()))?;
        let (cache, update) = (parameters.shape.clone(), case.update_shape());
        Ok(Self { session, cache, update, starts: Vec::new(), form: parameters.form })
    }
}

struct Bound<T: Element> {
    setup: Setup,
    tensors: Option<Tensors<T>>,
}

/// Tensors in memory of ONNX Runtime, because the `ort` crate copies borrowed tensors when it binds them.
struct Tensors<T: Element> {
    binding: IoBinding,
    cache: Tensor<T>,
    starts: Tensor<i64>,
}

impl<T: Element> Bound<T> {
    fn load(&self, call: &mut Call<'_>) -> ort::Result<Tensors<T>> {
        let Setup { session, cache: shape, update, starts, .. } = &self.setup;
        let copied = |shape: &Vec<usize>, bytes: &[u8]| -> ort::Result<_> {
            let mut tensor = Tensor::<T>::new(session.allocator(), shape.clone())?;
            tensor.extract_tensor_mut().1.copy_from_slice(bytemuck::cast_slice(bytes));
            Ok(tensor)
        };
        let mut cache = copied(shape, call.keys.cache)?;
        let update = copied(update, call.keys.update)?;
        let mut places = Tensor::<i64>::new(session.allocator(), [starts.len()])?;
        places.extract_tensor_mut().1.copy_from_slice(starts);
        let mut binding = session.create_binding()?;
        binding.bind_input(INPUTS[0], &cache)?;
        binding.bind_input(INPUTS[1], &update)?;
        binding.bind_input(INPUTS[2], &places)?;
        binding.bind_output(OUTPUT, &mut cache)?;
        Ok(Tensors { binding, cache, starts: places })
    }
}

impl<T: Element> Run for Bound<T> {
    fn aim(&mut self, starts: &[i64]) {
        self.setup.starts = starts.to_vec();
        if let Some(tensors) = &mut self.tensors {
            tensors.starts.extract_tensor_mut().1.copy_from_slice(starts);
        }
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        if self.tensors.is_none() {
            self.tensors = Some(self.load(call)?);
        }
        if let Some(tensors) = &self.tensors {
            self.setup.session.run_binding(&tensors.binding)?;
        }
        Ok(())
    }

    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let tensors = self.tensors.as_ref().ok_or("nothing was written")?;
        call.keys.cache.copy_from_slice(bytemuck::cast_slice(tensors.cache.extract_tensor().1));
        Ok(())
    }
}

struct Copying<T> {
    setup: Setup,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Copying<T> {
    /// Runs one call on views of the scene's memory. ONNX Runtime allocates the present.
    fn present(&mut self, call: &Call<'_>) -> ort::Result<SessionOutputs<'_>> {
        let Setup { session, cache, update, starts, .. } = &mut self.setup;
        let past = TensorRef::from_array_view((&cache[..], bytemuck::cast_slice::<u8, T>(call.keys.cache)))?;
        let update =
            TensorRef::from_array_view((&update[..], bytemuck::cast_slice::<u8, T>(call.keys.update)))?;
        let starts = TensorRef::from_array_view(([starts.len()], &starts[..]))?;
        session.run(ort::inputs![past, update, starts])
    }
}

impl<T: Element> Run for Copying<T> {
    fn aim(&mut self, starts: &[i64]) {
        self.setup.starts = starts.to_vec();
    }

    fn run(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        self.present(call)?;
        Ok(())
    }

    /// Calls once more, because each call drops its output. The past has not changed.
    fn publish(&mut self, call: &mut Call<'_>) -> Result<(), Failed> {
        let form = self.setup.form;
        let outputs = self.present(call)?;
        let present = bytemuck::cast_slice(outputs[OUTPUT].try_extract_tensor::<T>()?.1);
        match form {
            Form::InPlace => call.keys.cache.copy_from_slice(present),
            Form::Functional => call.keys.present.copy_from_slice(present),
        }
        Ok(())
    }
}
