"""Fabric's side of `node scripts/interop-fabric.mjs`. PyTorch 2.4 or newer and Lightning; torch.load and DCP are the truth here.

usage: python3 interop-fabric.py make FOLDER BATCHES.json WORLD     trains with FSDP on WORLD ranks; FOLDER/full, FOLDER/sharded, FOLDER/losses.json
       python3 interop-fabric.py load OURS EXPECTED WORLD           fabric.load of OURS on WORLD ranks, saved again and compared with EXPECTED
       python3 interop-fabric.py same A B [A B ...]                 every tensor of model and optimizer in A and in B, bit for bit
Each prints lines "OK ..." or "DIFF ..." and exits 0 or 1. The ranks share a GPU, over gloo, where there are fewer GPUs than ranks.
"""
import json, os, sys, tempfile
import torch, torch.nn as nn, torch.nn.functional as F

MODEL = dict(vocab_size=97, ninp=32, nhead=4, nhid=64, nlayers=2, dropout=0.0)
SAVED, STEPS = 5, 10  # saved after 5 steps, trained on to 10


def tensors(path):
    """Everything under `model` and `optimizer` that is a tensor, by name, as torch itself reads it."""
    if os.path.isdir(path):
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        with tempfile.TemporaryDirectory() as folder:
            dcp_to_torch_save(path, os.path.join(folder, "one"))
            state = torch.load(os.path.join(folder, "one"), map_location="cpu", weights_only=False)
    else:
        state = torch.load(path, map_location="cpu", weights_only=False)
    found = {"model." + name: value.detach() for name, value in state["model"].items()}
    for name, parts in state["optimizer"]["state"].items():
        found.update({f"optimizer.{name}.{part}": value for part, value in parts.items()})
    return found


def same(a, b, what):
    first, second = tensors(a), tensors(b)
    other = sorted(set(first) ^ set(second))
    unlike = lambda x, y: x.dtype != y.dtype or x.shape != y.shape or not torch.equal(x, y)
    bad = [name for name in first if name in second and unlike(first[name], second[name])]
    if other or bad or not first:
        print("DIFF", what, "only in one", other[:4], "different", bad[:4])
        sys.exit(1)
    print("OK", what, len(first), "tensors bit-equal, torch", torch.__version__, flush=True)


def train(world):
    """Fabric, launched, with the model and its optimizer set up."""
    import lightning as L
    from lightning.fabric.accelerators import CPUAccelerator
    from lightning.fabric.strategies import FSDPStrategy
    from lightning.pytorch.demos import Transformer

    class AnyDevice(CPUAccelerator):
        """Counts ranks as the CPU does, and lets them be anywhere."""

        def setup_device(self, device):
            pass

    class OneGpu(FSDPStrategy):
        root_device = torch.device("cuda", 0)

    layers = {nn.TransformerEncoderLayer, nn.TransformerDecoderLayer}
    if world <= torch.cuda.device_count():
        fabric = L.Fabric(accelerator="cuda", devices=world, strategy=FSDPStrategy(auto_wrap_policy=layers))
    else:
        strategy = OneGpu(auto_wrap_policy=layers, process_group_backend="gloo")
        fabric = L.Fabric(accelerator=AnyDevice(), devices=world, strategy=strategy)
    fabric.launch()
    torch.manual_seed(7)
    model = fabric.setup(Transformer(**MODEL))
    return fabric, model, fabric.setup_optimizers(torch.optim.Adam(model.parameters(), lr=1e-3))


def save(fabric, form, path, state):
    fabric.strategy._state_dict_type = form
    fabric.save(path, state)
    fabric.barrier()


def make(folder, batches, world):
    fabric, model, opt = train(world)
    losses = []
    for step, ranks in enumerate(json.load(open(batches))[:STEPS]):
        if step == SAVED:
            for form in ("full", "sharded"):
                save(fabric, form, os.path.join(folder, form), {"model": model, "optimizer": opt, "iter": step})
        x, y = (torch.tensor(ranks[fabric.global_rank][key], device=fabric.device) for key in ("input", "target"))
        loss = F.nll_loss(model(x, y), y.view(-1))
        fabric.backward(loss)
        opt.step()
        opt.zero_grad()
        losses.append(fabric.all_reduce(loss.detach(), reduce_op="mean").item())
    if fabric.global_rank == 0:
        json.dump(losses, open(os.path.join(folder, "losses.json"), "w"))
        print("OK Fabric trained", world, "ranks on", fabric.device, type(fabric.strategy).__name__, flush=True)


def load(ours, expected, world):
    fabric, model, opt = train(world)
    rest = fabric.load(ours, {"model": model, "optimizer": opt})
    again = ours.rstrip("/") + ".again"
    save(fabric, "full", again, {"model": model, "optimizer": opt})
    if fabric.global_rank == 0:
        same(again, expected, f"fabric.load on {world} ranks, iter {rest.get('iter')}")


if __name__ == "__main__":
    mode, *args = sys.argv[1:]
    if mode == "make":
        make(args[0], args[1], int(args[2]))
    elif mode == "load":
        load(args[0], args[1], int(args[2]))
    else:
        for a, b in zip(args[::2], args[1::2]):
            same(a, b, f"{os.path.basename(a)} and {os.path.basename(b)}")
