"""MXNet's Module with a DistributedOptimizer and no kvstore, in the manner of BytePS's ImageNet example for MXNet."""

import byteps.mxnet as bps
import mxnet as mx
import numpy as np

bps.init()
mx.random.seed(bps.rank())
generator = np.random.RandomState(bps.rank())
data = mx.io.NDArrayIter(generator.normal(size=(64, 8)).astype("float32"), generator.randint(0, 2, 64), 16)
layer = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="layer")
module = mx.mod.Module(mx.sym.SoftmaxOutput(layer, name="softmax"), context=mx.cpu(bps.local_rank()))
module.bind(data.provide_data, data.provide_label)
module.init_params(mx.init.Xavier())
arg_params, aux_params = module.get_params()
bps.broadcast_parameters(arg_params, root_rank=0)
bps.broadcast_parameters(aux_params, root_rank=0)
module.set_params(arg_params=arg_params, aux_params=aux_params)
optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd", rescale_grad=1.0 / 16, learning_rate=0.1))
module.fit(data, num_epoch=2, kvstore=None, optimizer=optimizer, arg_params=arg_params, aux_params=aux_params)
weight = module.get_params()[0]["layer_weight"]
mean = weight.copy()
bps.byteps_declare_tensor("weight")
bps.byteps_push_pull(mean, name="weight", is_average=True)
assert (mean.asnumpy() == weight.asnumpy()).all(), "the workers' models differ"
print("done", bps.rank(), bps.size(), flush=True)
