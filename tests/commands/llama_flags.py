"""The flags of llama.cpp's tools, as their --help lists them."""

from __future__ import annotations

from minka.commands.arguments import Parser
from minka.commands.command import discover

COMMON = """
    -h --help --usage --version -cl --cache-list --completion-bash -t --threads -tb --threads-batch -C
    --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch
    --cpu-strict-batch --prio-batch --poll-batch -c --ctx-size -n --predict --n-predict -b --batch-size -ub
    --ubatch-size --keep --swa-full -fa --flash-attn -p --prompt --perf --no-perf -f --file -bf
    --binary-file -e --escape --no-escape --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale
    --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -kvo --kv-offload
    -nkvo --no-kv-offload --repack -nr --no-repack --no-host -ctk --cache-type-k -ctv --cache-type-v -dt
    --defrag-thold -np --parallel --rpc -lm --load-mode -lzm --lazy-mode --numa -dev --device --list-devices
    -ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe -ncffn --n-cpu-ffn -ngl --gpu-layers
    --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -fit --fit -fitt --fit-target -fitc
    --fit-ctx --check-tensors --override-kv --op-offload --no-op-offload --lora --lora-scaled
    --control-vector --control-vector-scaled --control-vector-layer-range -m --model -mu --model-url -dr
    --docker-repo -hf -hfr --hf-repo -hff --hf-file -hft --hf-token --log-disable --log-file --log-jsonl
    --no-log-jsonl --log-colors -v --verbose --log-verbose --offline -lv --verbosity --log-verbosity
    --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps --spec-draft-type-k -ctkd
    --cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft --samplers -s --seed --sampler-seq
    --sampling-seq --ignore-eos --temp --temperature --top-k --top-p --min-p --top-nsigma --top-n-sigma
    --xtc-probability --xtc-threshold --typical --typical-p --repeat-last-n --repeat-penalty
    --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length
    --dry-penalty-last-n --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range
    --dynatemp-exp --mirostat --mirostat-lr --mirostat-ent -l --logit-bias --grammar --grammar-file -j
    --json-schema -jf --json-schema-file -bs --backend-sampling
"""
"""What all tools but bench and quantize have."""

FLAGS = {
    "complete": COMMON
    + """
    --verbose-prompt --display-prompt --no-display-prompt -co --color --context-shift --no-context-shift
    -sys --system-prompt -sysf --system-prompt-file -ptc --print-token-count --prompt-cache
    --prompt-cache-all --prompt-cache-ro -r --reverse-prompt -sp --special -cnv --conversation -no-cnv
    --no-conversation -st --single-turn -i --interactive -if --interactive-first -mli --multiline-input
    --in-prefix-bos --in-prefix --in-suffix --warmup --no-warmup -gan --grp-attn-n -gaw --grp-attn-w --jinja
    --no-jinja --reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget
    --reasoning-budget-message --reasoning-preserve --no-reasoning-preserve --chat-template
    --chat-template-file --skip-chat-parsing --no-skip-chat-parsing --simple-io
""",
    "perplexity": COMMON
    + """
    -kvu --kv-unified -no-kvu --no-kv-unified --context-shift --no-context-shift --chunks --warmup
    --no-warmup --hellaswag --hellaswag-tasks --winogrande --winogrande-tasks --multiple-choice
    --multiple-choice-tasks --kl-divergence --save-all-logits --kl-divergence-base --ppl-stride
    --ppl-output-type
""",
    "imatrix": COMMON
    + """
    --context-shift --no-context-shift --chunks --in-file -o --output --output-file -ofreq
    --output-frequency --output-format --save-frequency --process-output --ppl --no-ppl --chunk --from-chunk
    --show-statistics --parse-special
""",
    "bench": """
    -h --help --version --numa -r --repetitions --prio --delay -o --output -oe --output-err --list-devices
    -v --verbose --progress --no-warmup -fitt --fit-target -fitc --fit-ctx -m --model -hf -hfr --hf-repo
    -hff --hf-file -hft --hf-token --offline -p --n-prompt -n --n-gen -pg -d --n-depth -b --batch-size -ub
    --ubatch-size -ctk --cache-type-k -ctv --cache-type-v -t --threads -C --cpu-mask --cpu-strict --poll
    -ngl --n-gpu-layers -ncmoe --n-cpu-moe -sm --split-mode -mg --main-gpu -nkvo --no-kv-offload -fa
    --flash-attn -dev --device -lm --load-mode -lzm --lazy-mode -embd --embeddings -ts --tensor-split -ot
    --override-tensor -nopo --no-op-offload --no-host --repack
""",
    "batched-bench": COMMON
    + """
    -kvu --kv-unified -no-kvu --no-kv-unified -pps -tgs -npp -ntg -npl --output-format
""",
    "quantize": """
    --allow-requantize --leave-output-tensor --pure --imatrix --include-weights --exclude-weights
    --output-tensor-type --token-embedding-type --tensor-type --tensor-type-file --prune-layers --keep-split
    --override-kv --dry-run --max-buffer-size
""",
    "tokenize": COMMON
    + """
    --ids --stdin --no-bos --no-parse-special --show-count
""",
    "lora export": COMMON
    + """
    -o --output --output-file
""",
    "cvector generate": COMMON
    + """
    -o --output --output-file --positive-file --negative-file --pca-batch --pca-iter --method
""",
    "fit": COMMON
    + """
    -fitp --fit-print
""",
}
"""By the command of `minka` that takes the tool's place."""


def parser_of(command: str) -> Parser:
    """The parser of a command, or of an action of one."""
    name, _, action = command.partition(" ")
    parser = Parser(prog=f"minka {command}")
    next(entry for entry in discover() if entry.name == name).load().configure(parser)
    if action:
        parser = next(sub.choices[action] for sub in parser._actions if isinstance(sub.choices, dict))
    return parser
