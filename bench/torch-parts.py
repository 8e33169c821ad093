"""PyTorch's side of the parts that bench/ measures: a question a line, an answer a line.

usage: python3 torch-parts.py; as one of several ranks with RANK, WORLD_SIZE and MEET, a file by which they meet
Says READY and what it is. Reads {"ask": NAME, "rounds": N, ...}: what is asked for is made and warmed once, then timed N times;
"forget" drops all that was made. Says ANSWER and {"ms": [...], "how": ...}, or PROBLEM and why it has none. A GPU's own clock
counts, where launches do not count as a graph ("graph"), else with them ("launches"); or from end to end ("wall").
"""
import json
import os
import sys
import time

import torch

CUDA = torch.cuda.is_available()
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if CUDA:
    torch.cuda.set_device(RANK % torch.cuda.device_count())
    torch.backends.cuda.matmul.allow_tf32 = False
DEVICE = torch.device("cuda" if CUDA else "cpu")
WARM_S = 0.3 if CUDA else 0


def synchronize():
    if CUDA:
        torch.cuda.synchronize()


def captured(work):
    """The launches of `work` as a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


class Timed:
    """Work of `count` equal parts, timed `how`: "graph", "launches" or "wall"."""

    def __init__(self, work, count=1, how="graph", warm=True, before=lambda: None):
        self.run, self.count, self.before = work, count, before
        self.how = how if CUDA else "wall"
        if self.how == "graph":
            try:
                self.run = captured(work)
            except RuntimeError as problem:
                print("not captured:", problem, file=sys.stderr)
                self.how = "launches"
        began = time.perf_counter()
        while warm:
            self.run()
            synchronize()
            warm = time.perf_counter() - began < WARM_S

    def ms(self):
        self.before()
        if self.how == "wall":
            synchronize()
            began = time.perf_counter()
            self.run()
            synchronize()
            return 1000 * (time.perf_counter() - began) / self.count
        # The clock of a device that waited has fallen.
        self.run()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.run()
        end.record()
        synchronize()
        return begin.elapsed_time(end) / self.count


def values(*shape, dtype=torch.float32):
    return (torch.rand(*shape, device=DEVICE) * 2 - 1).to(dtype)


def copy(bytes):
    to, source = torch.empty(bytes // 4, device=DEVICE), values(bytes // 4)
    return Timed(lambda: to.copy_(source))


def matmul(layout, M, N, K, dtype, bias, copies, chain):
    """One of `chain` products, over `copies` of b and c in turns; with `bias` nt adds one and tn also sums a, its gradient."""
    dtype = getattr(torch, dtype)
    a = values(*((K, M) if layout == "tn" else (M, K)), dtype=dtype)
    bs = [values(*((N, K) if layout == "nt" else (K, N)), dtype=dtype) for _ in range(copies)]
    cs = [torch.empty(M, N, device=DEVICE, dtype=dtype) for _ in range(copies)]
    added, sums = values(N, dtype=dtype), torch.empty(M, device=DEVICE, dtype=dtype)

    def work():
        for i in range(chain):
            b, c = bs[i % copies], cs[i % copies]
            if layout == "nt" and bias:
                torch.addmm(added, a, b.t(), out=c)
                continue
            torch.mm(a.t() if layout == "tn" else a, b.t() if layout == "nt" else b, out=c)
            if bias:
                torch.sum(a, 0, out=sums)

    return Timed(work, chain)


def gradients(M, N, K, copies, chain):
    """Of a linear layer: its input's, its weight's and its bias's, over `copies` of the weight and its gradient in turns."""
    dy, x, dx, db = values(M, N), values(M, K), values(M, K), values(N)
    weights, grads = ([values(N, K) for _ in range(copies)] for _ in range(2))

    def work():
        for i in range(chain):
            torch.mm(dy, weights[i % copies], out=dx)
            torch.mm(dy.t(), x, out=grads[i % copies])
            torch.sum(dy, 0, out=db)

    return Timed(work, chain)


def attention(batch, tokens, heads, headDim, causal, dropout, backward):
    """scaled_dot_product_attention, or it and its gradients."""
    qkv = values(batch, tokens, 3, heads, headDim).permute(2, 0, 3, 1, 4).requires_grad_()
    seed = values(batch, heads, tokens, headDim)
    count = 10 if CUDA else 1

    def work():
        for _ in range(count):
            q, k, v = qkv[0], qkv[1], qkv[2]
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=causal)
            if backward:
                torch.autograd.grad(out, (q, k, v), seed)

    return Timed(work, count)


def adam(elements, kind):
    """A step of torch.optim.Adam over parameters of so many elements; `kind` is foreach or fused."""
    parameters = [torch.nn.Parameter(values(n)) for n in elements]
    for parameter in parameters:
        parameter.grad = values(*parameter.shape)
    return Timed(torch.optim.Adam(parameters, lr=1e-4, **{kind: True}).step, how="launches")


class DemoTransformer(torch.nn.Module):
    """The model of Fabric's FSDP guide: encoder and decoder of nlayers each, sines for positions."""

    def __init__(self, vocabSize, ninp, nhead, nhid, nlayers, dropout):
        super().__init__()
        nn, sizes = torch.nn, {"num_encoder_layers": nlayers, "num_decoder_layers": nlayers, "dim_feedforward": nhid}
        self.embedding, self.drop = nn.Embedding(vocabSize, ninp), nn.Dropout(dropout)
        self.transformer = nn.Transformer(ninp, nhead, dropout=dropout, batch_first=True, **sizes)
        self.head = nn.Linear(ninp, vocabSize)

    def embed(self, ids):
        x = self.embedding(ids) * self.embedding.embedding_dim**0.5
        places = torch.arange(ids.shape[1], device=ids.device)[:, None]
        angles = places * 10000 ** (-torch.arange(0, x.shape[2], 2, device=ids.device) / x.shape[2])
        return self.drop(x + torch.stack((angles.sin(), angles.cos()), 2).flatten(1).to(x.dtype))

    def forward(self, ids, targets):
        mask = torch.full((ids.shape[1],) * 2, float("-inf"), device=ids.device).triu(1)
        return self.head(self.transformer(self.embed(ids), self.embed(targets), tgt_mask=mask))


def step(model, batch, tokens, precision):
    """Forward, backward and Adam, as fabric_baseline.py has them, without Fabric."""
    if precision == "16-true":
        torch.set_default_dtype(torch.float16)
    with DEVICE:
        net = DemoTransformer(**model)
    torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    mixed = precision == "16-mixed"
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=mixed)
    ids, targets = (torch.randint(0, model["vocabSize"], (batch, tokens), device=DEVICE) for _ in range(2))

    def work():
        with torch.autocast(DEVICE.type, torch.float16, enabled=mixed):
            out = net(ids, targets)
        loss = torch.nn.functional.cross_entropy(out.float().flatten(0, 1), targets.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return Timed(work, how="wall")


def collective(kind, units, unitBytes):
    """One collective for each unit, one after the other."""
    on = DEVICE if torch.distributed.get_backend() == "nccl" else "cpu"
    fulls, shards = ([torch.ones(unitBytes // 4 // n, device=on) for _ in range(units)] for n in (1, WORLD))

    def work():
        for full, shard in zip(fulls, shards):
            if kind == "all-gather":
                torch.distributed.all_gather_into_tensor(full, shard)
            elif kind == "reduce-scatter":
                torch.distributed.reduce_scatter_tensor(shard, full)
            else:
                torch.distributed.all_reduce(full)

    return Timed(work, how="wall", before=torch.distributed.barrier)


def training_state(shapes, tensor):
    """A model and Adam's state of it."""
    adam = {i: {"step": torch.tensor(1.0), "exp_avg": tensor(s), "exp_avg_sq": tensor(s)} for i, s in enumerate(shapes)}
    return {"model": {f"parameter{i}": tensor(s) for i, s in enumerate(shapes)}, "optimizer": {"state": adam}}


def file(action, shapes, path):
    """torch.save, synced, or torch.load."""
    if action == "load":
        return Timed(lambda: torch.load(path, map_location="cpu", weights_only=True), how="wall", warm=False)
    state = training_state(shapes, lambda shape: torch.rand(shape))

    def save():
        with open(path, "wb") as out:
            torch.save(state, out)
            out.flush()
            os.fsync(out.fileno())

    return Timed(save, how="wall", warm=False)


def folder(action, shapes, path):
    """torch.distributed.checkpoint: each rank its rows, as FSDP has them, in host memory."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (WORLD,))

    def rows(shape):
        each = -(-shape[0] // WORLD)
        own = max(0, min(each, shape[0] - RANK * each))
        stride = torch.empty(shape, device="meta").stride()
        local = torch.rand(own, *shape[1:])
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride)

    state = training_state(shapes, rows)
    work = dcp.save if action == "save" else dcp.load
    return Timed(lambda: work(state, checkpoint_id=path), how="wall", warm=False, before=torch.distributed.barrier)


SUBJECTS = {each.__name__: each for each in (copy, matmul, gradients, attention, adam, step, collective, file, folder)}


def answer(made, question):
    rounds, name = question.pop("rounds", 1), question.pop("ask")
    if name == "forget":
        made.clear()
        if CUDA:
            torch.cuda.empty_cache()
        return {"ms": [], "how": ""}
    key = json.dumps([name, question])
    if key not in made:
        made[key] = SUBJECTS[name](**question)
    return {"ms": [made[key].ms() for _ in range(rounds)], "how": made[key].how}


def main():
    backend = "none"
    if WORLD > 1:
        backend = "nccl" if torch.cuda.device_count() >= WORLD else "gloo"
        meet = f"file://{os.environ['MEET']}"
        torch.distributed.init_process_group(backend, init_method=meet, rank=RANK, world_size=WORLD)
    on = torch.cuda.get_device_name() if CUDA else f"{torch.get_num_threads()} threads"
    about = {"version": torch.__version__, "gpus": torch.cuda.device_count(), "on": on, "backend": backend}
    print("READY", json.dumps(about), flush=True)
    made = {}
    for line in sys.stdin:
        try:
            print("ANSWER", json.dumps(answer(made, json.loads(line))), flush=True)
        except Exception as problem:
            print("PROBLEM", json.dumps(f"{type(problem).__name__}: {problem}"[:300]), flush=True)


main()
