from __future__ import annotations

import argparse
import re
import shlex
from math import inf
from typing import TYPE_CHECKING, TypeVar

import pytest

from minka.commands.arguments import Parser, add_parameters, default_text, foreign_env, resolve, unescape
from minka.commands.llama_flags import add_llama_server
from minka.errors import UsageError
from minka.params import (
    GROUPS,
    IGNORED,
    UNSUPPORTED,
    ChatParams,
    ContextParams,
    Foreign,
    GenerationParams,
    LogParams,
    ModelParams,
    SamplingParams,
    ServerParams,
    rows,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    D = TypeVar("D", bound=DataclassInstance)
else:
    D = TypeVar("D")

LLAMA_SERVER_FLAGS = """
    -h --help --usage --version -cl --cache-list --completion-bash --log-disable --log-file --log-jsonl
    --no-log-jsonl --log-colors -v --verbose --log-verbose -lv --verbosity --log-verbosity --offline
    --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps --log-prompts-dir --perf --no-perf -t
    --threads -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch
    -Crb --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch --numa -c --ctx-size
    --kv-unified-per-slot -n --predict --n-predict -b --batch-size -ub --ubatch-size --keep --swa-full -ctxcp
    --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step -cram --cache-ram -kvu --kv-unified -no-kvu
    --no-kv-unified --cache-idle-slots --no-cache-idle-slots --context-shift --no-context-shift -fa --flash-attn
    --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor
    --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -kvo --kv-offload -nkvo --no-kv-offload -ctk
    --cache-type-k -ctv --cache-type-v -dt --defrag-thold -np --parallel -cb --cont-batching -nocb
    --no-cont-batching --warmup --no-warmup -m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff
    --hf-file -hft --hf-token -a --alias --tags --lora --lora-scaled --lora-init-without-apply --control-vector
    --control-vector-scaled --control-vector-layer-range --repack -nr --no-repack --no-host --rpc -lm
    --load-mode -lzm --lazy-mode -dev --device --list-devices -ot --override-tensor -cmoe --cpu-moe -ncmoe
    --n-cpu-moe -ncffn --n-cpu-ffn -ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg
    --main-gpu -fit --fit -fitt --fit-target -fitc --fit-ctx --check-tensors --override-kv --op-offload
    --no-op-offload --pooling -mm --mmproj -mmu --mmproj-url --mmproj-auto --no-mmproj --no-mmproj-auto
    --mmproj-offload --no-mmproj-offload -mmdev --mmproj-device --image-min-tokens --image-max-tokens
    --mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir --media-path --samplers -s
    --seed --sampler-seq --sampling-seq --ignore-eos --temp --temperature --top-k --top-p --min-p --top-nsigma
    --top-n-sigma --xtc-probability --xtc-threshold --typical --typical-p --repeat-last-n --repeat-penalty
    --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n
    --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat
    --mirostat-lr --mirostat-ent -l --logit-bias --grammar --grammar-file -j --json-schema -jf
    --json-schema-file -bs --backend-sampling -e --escape --no-escape -r --reverse-prompt -sp --special --host
    --port --reuse-port --path --api-prefix --cors-origins --cors-methods --cors-headers --cors-credentials
    --no-cors-credentials --api-key --api-key-file --ssl-key-file --ssl-cert-file -to --timeout
    --sse-ping-interval --threads-http --ui --webui --no-ui --no-webui --ui-config --webui-config
    --ui-config-file --webui-config-file --ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy
    --tools --tools-runtime --mcp-servers-config --mcp-servers-json -ag --agent -no-ag --no-agent --metrics
    --props --slots --no-slots --slot-save-path --cache-prompt --no-cache-prompt --cache-reuse -sps
    --slot-prompt-similarity --sleep-idle-seconds --embedding --embeddings --rerank --reranking --embd-normalize
    --spm-infill -lcs --lookup-cache-static -lcd --lookup-cache-dynamic --jinja --no-jinja --chat-template
    --chat-template-file --chat-template-kwargs --skip-chat-parsing --no-skip-chat-parsing --prefill-assistant
    --no-prefill-assistant --reasoning-format -rea --reasoning --reasoning-effort --reasoning-budget
    --reasoning-budget-message --reasoning-preserve --no-reasoning-preserve --models-dir --models-preset
    --models-max --models-autoload --no-models-autoload --spec-type --spec-default --spec-draft-model -md
    --model-draft --spec-draft-hf -hfd -hfrd --hf-repo-draft --spec-draft-n-max --spec-draft-n-min
    --spec-draft-p-min --draft-p-min --spec-draft-p-split --draft-p-split --spec-draft-backend-sampling
    --no-spec-draft-backend-sampling --spec-draft-device -devd --device-draft --spec-draft-ngl -ngld
    --gpu-layers-draft --n-gpu-layers-draft --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v
    -ctvd --cache-type-v-draft --spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-cpu-moe
    -cmoed --cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft
    --spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft
    --spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft
    --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft
    --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft --spec-draft-cpu-strict-batch
    --cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch
    --poll-batch-draft --spec-synth-len --spec-synth-rates --spec-ngram-mod-n-match --spec-ngram-mod-n-min
    --spec-ngram-mod-n-max --spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits
    --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n
    --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --draft --draft-n --draft-max --draft-min
    --draft-n-min --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --embd-gemma-default
    --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec
    --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default
    --vision-gemma-12b-default
"""

LLAMA_SERVER_ENV = """
    LLAMA_ARG_LOG_FILE LLAMA_ARG_LOG_JSONL LLAMA_ARG_LOG_COLORS LLAMA_ARG_LOG_VERBOSITY LLAMA_ARG_OFFLINE
    LLAMA_ARG_LOG_PREFIX LLAMA_ARG_LOG_TIMESTAMPS LLAMA_ARG_PERF LLAMA_ARG_THREADS LLAMA_ARG_NUMA
    LLAMA_ARG_CTX_SIZE LLAMA_ARG_KV_UNIFIED_PER_SLOT LLAMA_ARG_N_PREDICT LLAMA_ARG_BATCH LLAMA_ARG_UBATCH
    LLAMA_ARG_SWA_FULL LLAMA_ARG_CTX_CHECKPOINTS LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT LLAMA_ARG_CACHE_RAM
    LLAMA_ARG_KV_UNIFIED LLAMA_ARG_CACHE_IDLE_SLOTS LLAMA_ARG_CONTEXT_SHIFT LLAMA_ARG_FLASH_ATTN
    LLAMA_ARG_ROPE_SCALING_TYPE LLAMA_ARG_ROPE_SCALE LLAMA_ARG_ROPE_FREQ_BASE LLAMA_ARG_ROPE_FREQ_SCALE
    LLAMA_ARG_YARN_ORIG_CTX LLAMA_ARG_YARN_EXT_FACTOR LLAMA_ARG_YARN_ATTN_FACTOR LLAMA_ARG_YARN_BETA_SLOW
    LLAMA_ARG_YARN_BETA_FAST LLAMA_ARG_KV_OFFLOAD LLAMA_ARG_CACHE_TYPE_K LLAMA_ARG_CACHE_TYPE_V
    LLAMA_ARG_DEFRAG_THOLD LLAMA_ARG_N_PARALLEL LLAMA_ARG_CONT_BATCHING LLAMA_ARG_MODEL LLAMA_ARG_MODEL_URL
    LLAMA_ARG_DOCKER_REPO LLAMA_ARG_HF_REPO LLAMA_ARG_HF_FILE HF_TOKEN LLAMA_ARG_ALIAS LLAMA_ARG_TAGS
    LLAMA_ARG_REPACK LLAMA_ARG_NO_HOST LLAMA_ARG_RPC LLAMA_ARG_LOAD_MODE LLAMA_ARG_LAZY_MODE LLAMA_ARG_DEVICE
    LLAMA_ARG_OVERRIDE_TENSOR LLAMA_ARG_CPU_MOE LLAMA_ARG_N_CPU_MOE LLAMA_ARG_N_CPU_FFN LLAMA_ARG_N_GPU_LAYERS
    LLAMA_ARG_SPLIT_MODE LLAMA_ARG_TENSOR_SPLIT LLAMA_ARG_MAIN_GPU LLAMA_ARG_FIT LLAMA_ARG_FIT_TARGET
    LLAMA_ARG_FIT_CTX LLAMA_ARG_POOLING LLAMA_ARG_MMPROJ LLAMA_ARG_MMPROJ_URL LLAMA_ARG_MMPROJ_AUTO
    LLAMA_ARG_MMPROJ_OFFLOAD MTMD_BACKEND_DEVICE LLAMA_ARG_IMAGE_MIN_TOKENS LLAMA_ARG_IMAGE_MAX_TOKENS
    LLAMA_ARG_MTMD_BATCH_MAX_TOKENS LLAMA_ARG_VIDEO_FPS LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL
    LLAMA_ARG_VIDEO_FFMPEG_DIR LLAMA_ARG_TEMPERATURE LLAMA_ARG_TOP_K LLAMA_ARG_TOP_P LLAMA_ARG_MIN_P
    LLAMA_ARG_REPEAT_PENALTY LLAMA_ARG_PRESENCE_PENALTY LLAMA_ARG_FREQUENCY_PENALTY LLAMA_ARG_BACKEND_SAMPLING
    LLAMA_ARG_HOST LLAMA_ARG_PORT LLAMA_ARG_REUSE_PORT LLAMA_ARG_STATIC_PATH LLAMA_ARG_API_PREFIX
    LLAMA_ARG_CORS_ORIGINS LLAMA_ARG_CORS_METHODS LLAMA_ARG_CORS_HEADERS LLAMA_ARG_CORS_CREDENTIALS
    LLAMA_API_KEY LLAMA_ARG_API_KEY_FILE LLAMA_ARG_SSL_KEY_FILE LLAMA_ARG_SSL_CERT_FILE LLAMA_ARG_TIMEOUT
    LLAMA_ARG_SSE_PING_INTERVAL LLAMA_ARG_THREADS_HTTP LLAMA_ARG_UI LLAMA_ARG_UI_CONFIG LLAMA_ARG_UI_CONFIG_FILE
    LLAMA_ARG_UI_MCP_PROXY LLAMA_ARG_TOOLS LLAMA_ARG_TOOLS_RUNTIME LLAMA_ARG_MCP_SERVERS_CONFIG
    LLAMA_ARG_MCP_SERVERS_JSON LLAMA_ARG_AGENT LLAMA_ARG_ENDPOINT_METRICS LLAMA_ARG_ENDPOINT_PROPS
    LLAMA_ARG_ENDPOINT_SLOTS LLAMA_ARG_CACHE_PROMPT LLAMA_ARG_CACHE_REUSE LLAMA_ARG_EMBEDDINGS
    LLAMA_ARG_RERANKING LLAMA_ARG_JINJA LLAMA_ARG_CHAT_TEMPLATE LLAMA_ARG_CHAT_TEMPLATE_FILE
    LLAMA_ARG_CHAT_TEMPLATE_KWARGS LLAMA_ARG_SKIP_CHAT_PARSING LLAMA_ARG_PREFILL_ASSISTANT LLAMA_ARG_THINK
    LLAMA_ARG_REASONING LLAMA_ARG_REASONING_EFFORT LLAMA_ARG_THINK_BUDGET LLAMA_ARG_THINK_BUDGET_MESSAGE
    LLAMA_ARG_REASONING_PRESERVE LLAMA_ARG_MODELS_DIR LLAMA_ARG_MODELS_PRESET LLAMA_ARG_MODELS_MAX
    LLAMA_ARG_MODELS_AUTOLOAD LLAMA_ARG_SPEC_TYPE LLAMA_ARG_SPEC_DRAFT_MODEL LLAMA_ARG_SPEC_DRAFT_HF_REPO
    LLAMA_ARG_SPEC_DRAFT_N_MAX LLAMA_ARG_SPEC_DRAFT_N_MIN LLAMA_ARG_SPEC_DRAFT_P_MIN
    LLAMA_ARG_SPEC_DRAFT_P_SPLIT LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING LLAMA_ARG_N_GPU_LAYERS_DRAFT
    LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V LLAMA_ARG_SPEC_DRAFT_CPU_MOE
    LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE LLAMA_ARG_SPEC_SYNTH_LEN LLAMA_ARG_SPEC_SYNTH_RATES LLAMA_ARG_DRAFT_MAX
    LLAMA_ARG_DRAFT_MIN
"""


def serve_parser() -> Parser:
    parser = Parser(prog="minka serve")
    add_parameters(parser, *GROUPS)
    add_llama_server(parser)
    return parser


def parse(line: str) -> argparse.Namespace:
    return serve_parser().parse_args(shlex.split(line))


def read(cls: type[D], line: str, **env: str) -> D:
    return resolve(parse(line), cls, env)


def error(line: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(line)
    return str(caught.value)


# -- the spellings are llama-server's


def test_every_flag_of_llama_server_is_known() -> None:
    assert set(LLAMA_SERVER_FLAGS.split()) - set(serve_parser()._option_string_actions) == set()


def test_every_env_of_llama_server_is_known() -> None:
    known = {row.param.env for cls in GROUPS for row in rows(cls)} | {f.env for f in (*IGNORED, *UNSUPPORTED)}
    known |= {also.env for cls in GROUPS for row in rows(cls) for also in row.param.also}
    assert set(LLAMA_SERVER_ENV.split()) - known == set()


def test_a_command_line_of_llama_server_works_unchanged() -> None:
    namespace = parse(
        "-m model.gguf -c 4096 -np 4 -ngl 99 -fa on --temp 0.2 -cb --no-warmup -ctk q8_0 -n -1 --host 0.0.0.0,::1 "
        "--port 8000 -a small,tiny --api-key k1,k2 --metrics --no-context-shift --cache-reuse 0 --no-mmproj "
        "--no-cache-idle-slots --cache-ram 0 --spec-type none --no-ui-mcp-proxy --fit off -dt 0.1 --threads-http 8 "
        "--no-perf --reasoning auto --load-mode mmap+mlock --jinja --chat-template-kwargs '{\"a\": 1}' -lv 4"
    )
    model = resolve(namespace, ModelParams, {})
    context = resolve(namespace, ContextParams, {})
    server = resolve(namespace, ServerParams, {})
    assert model == ModelParams(model="model.gguf", n_gpu_layers=99, alias=("small", "tiny"), load_mode="mmap+mlock")
    assert context == ContextParams(n_ctx=4096, parallel=4, flash_attn="on", warmup=False, cache_type_k="q8_0")
    assert (server.host, server.port, server.metrics) == (("0.0.0.0", "::1"), 8000, True)
    assert server.api_key == ("k1", "k2")
    assert resolve(namespace, SamplingParams, {}) == SamplingParams(temperature=0.2)
    assert resolve(namespace, GenerationParams, {}) == GenerationParams()
    assert resolve(namespace, ChatParams, {}).chat_template_kwargs == '{"a": 1}'
    assert resolve(namespace, LogParams, {}).verbosity == 4


@pytest.mark.parametrize("cls", GROUPS)
def test_nothing_given_is_the_defaults(cls: type[DataclassInstance]) -> None:
    assert read(cls, "") == cls()


# -- the rules of the command line


def test_underscores_in_long_flags_are_dashes() -> None:
    assert read(ContextParams, "--ctx_size 5 --n_gpu_layers 3").n_ctx == 5


def test_the_last_use_wins() -> None:
    assert read(ContextParams, "-c 1 --ctx-size 2").n_ctx == 2
    assert read(ChatParams, "--no-jinja --jinja").jinja is True
    assert read(SamplingParams, "--samplers top_k --sampler-seq pt").samplers == ("top_p", "temperature")


def test_a_value_may_follow_an_equals_sign() -> None:
    assert read(ContextParams, "--ctx-size=7 -np=2") == ContextParams(n_ctx=7, parallel=2)
    assert read(ModelParams, "--model=a=b").model == "a=b"


def test_the_word_after_a_flag_is_its_value_whatever_it_looks_like() -> None:
    assert read(GenerationParams, "-n -1 -r --jinja -r -c").stop == ("--jinja", "-c")
    assert read(GenerationParams, "-r ''").stop == ("",)


def test_flags_are_not_abbreviated() -> None:
    assert error("--ctx 4") == "there is no flag --ctx; did you mean --ctx-size?"
    assert error("--ctx-sise=4") == "there is no flag --ctx-sise; did you mean --ctx-size?"
    assert error("-model x.gguf") == "there is no flag -model; did you mean --model?"


def test_a_word_without_a_flag_is_told_where_it_belongs() -> None:
    assert error("x.gguf -c 4") == "'x.gguf' belongs to no flag; did you mean -m 'x.gguf'?"
    assert error("hello") == "'hello' belongs to no flag"
    assert error("-ng 4").startswith("there is no flag -ng")
    assert error("-np4").startswith("there is no flag -np4")


def test_a_flag_without_its_value() -> None:
    assert error("-m x -c") == "-c needs a value"
    assert error("-r -- -m x") == "-r needs a value"
    assert error("-r=--") == "-r needs a value"


def test_flags_of_other_kinds_still_work() -> None:
    parser = Parser(prog="minka try")
    add_parameters(parser, ContextParams)
    parser.add_argument("FILE")
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--out", required=True)
    namespace = parser.parse_args(["-", "--ratio", "-2.5", "-t", "3", "--out", "--x"])
    assert (namespace.FILE, namespace.ratio, namespace.out) == ("-", -2.5, "--x")
    assert resolve(namespace, ContextParams, {}).threads == 3
    with pytest.raises(UsageError, match="--out"):
        parser.parse_args(["-"])
    assert parser.parse_args(["--out", "o", "--", "--ratio"]).FILE == "--ratio"


def test_subcommands_have_flags_of_their_own() -> None:
    parser = Parser(prog="minka try")
    nested = parser.add_subparsers(dest="what", required=True).add_parser("show")
    nested.add_argument("--depth", type=int)
    nested.add_argument("FILE")
    namespace = parser.parse_args(["show", "--depth", "-1", "a.gguf"])
    assert (namespace.what, namespace.depth, namespace.FILE) == ("show", -1, "a.gguf")


def test_attributes_can_be_left_out() -> None:
    parser = Parser(prog="minka try")
    add_parameters(parser, ModelParams, omit=("alias", "tags"))
    with pytest.raises(UsageError, match="there is no flag --alias"):
        parser.parse_args(["--alias", "a"])


# -- values


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("-ngl auto", "n_gpu_layers", -1),
        ("-ngl all", "n_gpu_layers", -2),
        ("--tensor-split 3,1", "tensor_split", (3.0, 1.0)),
        ("-ts 3/1", "tensor_split", (3.0, 1.0)),
        ("--alias a,b --alias ' c ,,'", "alias", ("a", "b", "c")),
        ("--alias '\"x,y\",z'", "alias", ("x,y", "z")),
        ("-nr", "repack", False),
    ],
)
def test_model_values(line: str, name: str, value: object) -> None:
    assert getattr(read(ModelParams, line), name) == value


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("-fa 1", "flash_attn", "on"),
        ("-fa disabled", "flash_attn", "off"),
        ("-fa auto", "flash_attn", "auto"),
        ("-kvu", "kv_unified", True),
        ("-no-kvu", "kv_unified", False),
        ("--rope-scale 4", "rope_freq_scale", 0.25),
        ("-np -1", "parallel", -1),
        ("--control-vector a,b --control-vector c", "control_vectors", (("a", 1.0), ("b", 1.0), ("c", 1.0))),
        ("--control-vector-scaled a:0.5,c:/b:-2", "control_vectors", (("a", 0.5), ("c:/b", -2.0))),
        ("--control-vector-layer-range 5 20", "control_vector_layers", (5, 20)),
        ("--control-vector-layer-range -1 -1", "control_vector_layers", (-1, -1)),
    ],
)
def test_context_values(line: str, name: str, value: object) -> None:
    assert getattr(read(ContextParams, line), name) == value


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("-l 15043+1 -l 7-2.5 -l 2-inf", "logit_bias", ((15043, 1.0), (7, -2.5), (2, -inf))),
        ("--samplers 'top-k;temp'", "samplers", ("top_k", "temperature")),
        ("--samplers ''", "samplers", ()),
        ("--temp -1", "temperature", 0.0),
        ("--dry-base 0", "dry_base", 1.75),
        ("--dry-sequence-breaker a --dry-sequence-breaker '\\n'", "dry_sequence_breakers", ("a", "\n")),
        ("--dry-sequence-breaker none", "dry_sequence_breakers", ()),
        ("--dry-sequence-breaker a --dry-sequence-breaker none", "dry_sequence_breakers", ()),
        ("--seed 4294967295", "seed", 2**32 - 1),
    ],
)
def test_sampling_values(line: str, name: str, value: object) -> None:
    assert getattr(read(SamplingParams, line), name) == value


def test_escapes_are_processed_unless_switched_off() -> None:
    assert read(GenerationParams, r"-r 'a\nb'").stop == ("a\nb",)
    assert read(GenerationParams, r"-r 'a\nb' --no-escape").stop == (r"a\nb",)
    assert read(SamplingParams, r"--no-escape --dry-sequence-breaker '\n'").dry_sequence_breakers == (r"\n",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(r"\t\r\n\\\"\'", "\t\r\n\\\"'"), (r"\xe2\x82\xac", "€"), (r"\x41", "A"), (r"\q\x4", r"\q\x4"), ("€\\", "€\\")],
)
def test_unescape(text: str, expected: str) -> None:
    assert unescape(text) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-c 2147483648", "-c must be between 0 and 2147483647, but got 2147483648"),
        ("-c " + "9" * 5000, "-c must be an integer, but got"),
        ("--port 70000", "--port must be between 0 and 65535, but got 70000"),
        ("-np 0", "-np must be -1 or between 1 and 256, but got 0"),
        ("--top-k 1.5", "--top-k must be an integer, but got '1.5'"),
        ("--temp warm", "--temp must be a number, but got 'warm'"),
        ("--temp nan", "--temp must be a finite number"),
        ("--repeat-last-n -1", "--repeat-last-n must be between 0 and 1048576, but got -1"),
        ("--rope-scale 0", "--rope-scale must be greater than 0, but got '0'"),
        ("-ngl some", "-ngl must be an integer, auto, all, but got 'some'"),
        ("-fa maybe", "-fa must be one of on, off, auto, but got 'maybe'"),
        ("-ctk f8", "-ctk must be one of f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1, but got 'f8'"),
        ("--samplers top_k;foo", "--samplers has no sampler 'foo'; there are penalties"),
        ("--sampler-seq kz", "--sampler-seq has no sampler letter 'z'"),
        ("-l 5", "-l must be a token id with a bias such as 15043+1 or 15043-inf, but got '5'"),
        ("-l 2147483648+1", "-l must be a token id"),
        ("-l 5+1e300", "-l must be between -1000000 and 1000000"),
        ("-l 5+inf", "-l must be a finite number"),
        ("--host ,", "--host needs at least 1 value"),
        ("--api-key ''", "--api-key needs at least 1 value"),
        ("-ts 1,x", "-ts must be a number, but got 'x'"),
        ("-ts " + ",".join("1" * 17), "-ts takes at most 16 values, but got 17"),
        ("--chat-template-kwargs [1]", "--chat-template-kwargs must be a JSON object, but got '[1]'"),
        ("--chat-template-kwargs {", "--chat-template-kwargs must be a JSON object: "),
        ("file.gguf", "'file.gguf' belongs to no flag"),
        ("--control-vector-scaled a.gguf", "--control-vector-scaled must be FILE:SCALE, as in x.gguf:0.5, but got"),
        ("--control-vector-scaled a.gguf:x", "--control-vector-scaled must be a number, but got 'x'"),
        ("--control-vector-layer-range 1 x", "--control-vector-layer-range must be an integer, but got 'x'"),
        ("--control-vector-layer-range 1 -2", "--control-vector-layer-range must be between -1 and"),
    ],
)
def test_bad_values(line: str, message: str) -> None:
    assert error(line.replace(";", r"\;")).startswith(message)


# -- flags that Minka does not have


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--rpc x", "--rpc is a llama.cpp flag that Minka does not have: it computes on the devices of this machine"),
        ("--tools x", "--tools is a llama.cpp flag that Minka does not support yet"),
        ("-md x", "-md is a llama.cpp flag that Minka does not support yet"),
        ("--draft 4", "--draft is a llama.cpp flag that has been removed: use --spec-draft-n-max or"),
        ("--no-mmap", "--no-mmap is a llama.cpp flag that has been removed: use --load-mode none"),
    ],
)
def test_unsupported_flags_are_refused_by_name(line: str, message: str) -> None:
    assert error(line).startswith(message)


@pytest.mark.parametrize("foreign", UNSUPPORTED, ids=lambda foreign: foreign.flags[0])
def test_every_unsupported_flag_is_refused_but_for_what_is_off(foreign: Foreign) -> None:
    for flag in foreign.flags:
        message = error(shlex.join([flag, *["bogus"] * foreign.values]))
        assert message == f"{flag} is a llama.cpp flag that {foreign.note}"
        for value in foreign.off:
            parse(shlex.join([flag, value]))
    for flag in foreign.negated:
        parse(flag)


@pytest.mark.parametrize("foreign", IGNORED, ids=lambda foreign: foreign.flags[0])
def test_every_ignored_flag_is_taken(foreign: Foreign) -> None:
    for flag in (*foreign.flags, *foreign.negated):
        parse(shlex.join([flag, *["anything"] * foreign.values]))


def test_only_a_command_that_wants_them_takes_foreign_flags() -> None:
    parser = Parser(prog="minka try")
    add_parameters(parser, ModelParams)
    with pytest.raises(UsageError, match="there is no flag --lora"):
        parser.parse_args(["--lora", "x"])


# -- the environment


def test_the_command_line_beats_the_environment_and_that_the_default() -> None:
    assert read(ContextParams, "", LLAMA_ARG_CTX_SIZE="5").n_ctx == 5
    assert read(ContextParams, "-c 6", LLAMA_ARG_CTX_SIZE="5").n_ctx == 6
    assert read(ServerParams, "", LLAMA_API_KEY="a,b").api_key == ("a", "b")
    assert read(ServerParams, "--api-key c", LLAMA_API_KEY="a,b").api_key == ("c",)
    assert read(ServerParams, "", MINKA_QUEUE_SIZE="3").queue_size == 3


@pytest.mark.parametrize("word", ["on", "enabled", "true", "1", "TRUE"])
def test_true_words(word: str) -> None:
    assert read(ServerParams, "", LLAMA_ARG_ENDPOINT_METRICS=word).metrics is True


@pytest.mark.parametrize("word", ["off", "disabled", "false", "0"])
def test_false_words(word: str) -> None:
    assert read(ChatParams, "", LLAMA_ARG_JINJA=word).jinja is False


def test_a_no_variable_negates_whatever_its_value() -> None:
    assert read(ChatParams, "", LLAMA_ARG_NO_JINJA="0").jinja is False
    assert read(ChatParams, "", LLAMA_ARG_NO_JINJA="1", LLAMA_ARG_JINJA="1").jinja is False
    assert read(ChatParams, "--jinja", LLAMA_ARG_NO_JINJA="1").jinja is True
    assert read(ModelParams, "", LLAMA_ARG_NO_HOST="1").no_host is True


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert read(ServerParams, "", LLAMA_API_KEY="", LLAMA_ARG_PORT="") == ServerParams()


def test_a_second_spelling_has_its_own_variable() -> None:
    assert read(ContextParams, "", LLAMA_ARG_ROPE_SCALE="2").rope_freq_scale == 0.5


@pytest.mark.parametrize(
    ("cls", "name", "text", "message"),
    [
        (ContextParams, "LLAMA_ARG_CTX_SIZE", "big", "must be an integer, but got 'big'"),
        (ChatParams, "LLAMA_ARG_JINJA", "perhaps", "must be one of on, enabled, true, 1, off, disabled, false, 0"),
        (ServerParams, "LLAMA_API_KEY", ",", "needs at least 1 value"),
    ],
)
def test_a_bad_variable_is_named(cls: type[DataclassInstance], name: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"the environment variable {name} {message}")):
        read(cls, "", **{name: text})


def test_variables_of_unsupported_flags_are_warned_of() -> None:
    env = {
        "LLAMA_ARG_MMPROJ": "x.gguf",
        "LLAMA_ARG_CACHE_REUSE": "0",
        "LLAMA_ARG_CONTEXT_SHIFT": "off",
        "LLAMA_ARG_MODELS_DIR": "x",
        "LLAMA_ARG_FIT": "on",
        "LLAMA_ARG_CTX_SIZE": "5",
    }
    mmproj, models_dir = sorted(foreign_env(env))
    end = "is a llama.cpp flag that Minka does not support yet"
    assert mmproj == f"the environment variable LLAMA_ARG_MMPROJ has no effect: -mm {end}"
    assert models_dir == f"the environment variable LLAMA_ARG_MODELS_DIR has no effect: --models-dir {end}"


# -- help


def test_help_shows_every_flag_once_with_default_and_variable() -> None:
    text = serve_parser().format_help()
    for cls in GROUPS:
        assert f"{GROUPS[cls]}:" in text
        for row in rows(cls):
            for flag in row.param.flags:
                assert re.search(rf"(?m)^  .*{re.escape(flag)}\b", text), flag
    flat = " ".join(text.split())
    assert "-c, --ctx-size N size of the context" in flat
    assert "(default: 2048; env: LLAMA_ARG_BATCH)" in flat
    assert not [flag for foreign in UNSUPPORTED for flag in foreign.flags if f" {flag} " in flat]
    assert text.startswith("usage: minka serve [options]\n")


def test_usage_names_the_positional_arguments() -> None:
    parser = Parser(prog="minka quantize")
    parser.add_argument("INPUT")
    parser.add_argument("OUTPUT", nargs="?")
    parser.add_argument("--threads")
    assert parser.format_usage() == "usage: minka quantize [options] INPUT [OUTPUT]\n"


def test_defaults_are_written_as_on_the_command_line() -> None:
    texts = {row.name: default_text(row) for cls in GROUPS for row in rows(cls)}
    assert (texts["n_gpu_layers"], texts["jinja"], texts["rope_freq_base"], texts["model"]) == ("auto", "on", "0", "")
    assert texts["samplers"].startswith("penalties;dry;")
    assert texts["dry_sequence_breakers"] == r"\n,:,\",*"
