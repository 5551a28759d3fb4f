"""Gluon with a DistributedTrainer, in the manner of BytePS's MNIST example for MXNet; the images are generated."""

import argparse

import byteps.mxnet as bps
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--fp16-pushpull", action="store_true", default=False)
parser.add_argument("--compressor", type=str, default="")
parser.add_argument("--onebit-scaling", action="store_true", default=False)
parser.add_argument("--k", default=1, type=int)
parser.add_argument("--ef", type=str, default=None)
parser.add_argument("--compress-momentum", type=str, default=None)
parser.add_argument("--no-cuda", action="store_true", default=False)
args = parser.parse_args()
if not args.no_cuda and mx.context.num_gpus() == 0:
    args.no_cuda = True

bps.init()
context = mx.cpu(bps.local_rank()) if args.no_cuda else mx.gpu(bps.local_rank())
num_workers = bps.size()

generator = np.random.RandomState(7)
labels = generator.randint(0, 8, 256)
images = generator.normal(0, 0.3, (256, 1, 8, 8)).astype("float32")
images[np.arange(256), 0, labels] += 2.0
mine = slice(bps.rank(), None, num_workers)
train_data = mx.io.NDArrayIter(images[mine], labels[mine].astype("float32"), args.batch_size)

model = gluon.nn.HybridSequential()
with model.name_scope():
    model.add(gluon.nn.Conv2D(channels=4, kernel_size=3, activation="relu"), gluon.nn.Flatten(), gluon.nn.Dense(10))
model.cast("float32")
model.initialize(mx.init.Xavier(), ctx=context)
model.hybridize()
params = model.collect_params()
if params is not None:
    bps.broadcast_parameters(params, root_rank=0)
optimizer_params = {"momentum": args.momentum, "learning_rate": args.lr * num_workers}
compression_params = {
    "compressor": args.compressor,
    "ef": args.ef,
    "momentum": args.compress_momentum,
    "scaling": args.onebit_scaling,
    "k": args.k,
    "fp16": args.fp16_pushpull,
}
# All by position, as BytePS has them.
trainer = bps.DistributedTrainer(params, "sgd", optimizer_params, 0, compression_params)
loss_fn = gluon.loss.SoftmaxCrossEntropyLoss()
metric = mx.metric.Accuracy()
accuracy = 0.0
for epoch in range(args.epochs):
    train_data.reset()
    metric.reset()
    for batch in train_data:
        data, label = batch.data[0].as_in_context(context), batch.label[0].as_in_context(context)
        with autograd.record():
            output = model(data)
            loss = loss_fn(output, label)
        loss.backward()
        trainer.step(args.batch_size)
        metric.update([label], [output])
    _, accuracy = metric.get()
    print(f"[Epoch {epoch}] train accuracy {accuracy:.3f}", flush=True)
assert accuracy > 0.5, accuracy
weight = nd.array(model[2].weight.data().asnumpy())
bps.byteps_declare_tensor("weight")
bps.byteps_push_pull(weight, version=0, priority=0, name="weight", is_average=True)
assert (weight.asnumpy() == model[2].weight.data().asnumpy()).all(), "the workers' models differ"
print("done", bps.rank(), bps.size(), flush=True)
