//! burn's CUDA tensors: where they lie, and what runs before what.
//!
//! burn's CUDA backend is cubecl. cubecl owns the memory and the streams (one for each thread that uses burn). It gives away
//! addresses, and keeps its streams to itself. So a call waits on the host twice, for cubecl's work on x and for silumin's work, or
//! events of the whole context order both ([`Order`](crate::Order)).

use crate::{Error, GatedMlp};
use burn::backend::Cube;
use burn::tensor::{DType, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::Client;
use cubecl::cuda::CudaRuntime;
use cubecl::server::Handle;
use cubecl_runtime::runtime::Runtime;
use silumin::Buffer;

/// The tensor behind the tensor: burn's fusion puts operations off, and `resolve_tensor_float` runs what is left to do.
/// Without fusion `try_into_primitive` gives the `CubeTensor`.
fn cube<const D: usize>(tensor: Tensor<D>) -> Result<CubeTensor, Error> {
    let fused = tensor.try_into_primitive::<Cube>().map_err(|error| Error::Burn(format!("{error:?}")))?;
    Ok(fused.client.clone().resolve_tensor_float::<CubeBackend>(fused))
}

/// Waits on the host until cubecl's stream of this memory has done what it was given.
fn wait(client: &Client, handle: &Handle) -> Result<(), Error> {
    let done = handle.stream.executes(|| client.sync());
    cubecl::future::block_on(done).map_err(|error| Error::Burn(error.to_string()))
}

impl GatedMlp {
    pub(crate) fn on_cuda(&self, x: Tensor<3>, tokens: u32, rows: usize) -> Result<Tensor<3>, Error> {
        let shape = x.dims();
        let (hidden, row_bytes) = (self.mlp.hidden(), self.mlp.row_bytes());
        // The result is burn's memory with the bucket's rows. One dimension, because cubecl may pad rows.
        let out = Tensor::<1>::empty([rows * hidden], (&self.device, DType::BF16));
        // `into_contiguous` copies only what is strided: a transposed view, say.
        let [x, y] = [into_contiguous(cube(x)?), cube(out.clone())?];
        let address = |tensor: &CubeTensor| {
            let client = &tensor.client;
            client
                .get_resource::<<CudaRuntime as Runtime>::Server>(tensor.handle.clone())
                .map_err(|error| Error::Burn(error.to_string()))
        };
        // As long as these live, cubecl neither frees the memory nor moves it. Behind `get_resource` everything that burn was
        // asked for before is in cubecl's streams.
        let [x_memory, y_memory] = [address(&x)?, address(&y)?];
        match &self.events {
            Some(events) => events.before()?,
            None => {
                wait(&x.client, &x.handle)?;
                wait(&y.client, &y.handle)?;
            }
        }
        let lend = |address: u64, rows: usize| -> Result<Buffer, Error> {
            // SAFETY: the tensor has that many rows, one behind the other. Its memory lives and stays until this stream is done, or
            // until nothing in the context runs before this stream is done. cubecl's work on it is done, or waited for, and no more
            // comes: this function has the only handle of `out`, and x is only read.
            Ok(unsafe { self.stream.lend(address, rows * row_bytes) }?)
        };
        let x = lend(x_memory.resource().ptr, tokens as usize)?;
        let y = lend(y_memory.resource().ptr, rows)?;
        let ran = self.mlp.forward(&self.stream, tokens, &x, None, &y);
        // After a failure too: the first of two kernels may run.
        match &self.events {
            // Without the event only the host's wait keeps the memory until the kernels are done.
            Some(events) => {
                if let Err(error) = events.after() {
                    self.stream.synchronize()?;
                    return Err(error);
                }
            }
            None => self.stream.synchronize()?,
        }
        ran?;
        drop((x_memory, y_memory));
        // The tokens' rows: a view, unless cubecl has to align it.
        Ok(out.slice(0..tokens as usize * hidden).reshape(shape))
    }
}
