from __future__ import annotations

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from minka.ggufs.layout import TENSOR_TYPES, VALUE_TYPE_NAMES, ValueType, pad, tensor_type


def test_every_type_of_the_gguf_package_has_the_same_name_and_block() -> None:
    for kind, (block, size) in GGML_QUANT_SIZES.items():
        row = tensor_type(int(kind))
        if kind is GGMLQuantizationType.Q8_1:
            size = 36  # two halves and 32 bytes; the package up to 0.19.0 counts the halves as floats
        assert (row.name, row.block, row.size) == (kind.name, block, size)


def test_types_that_the_package_lacks_are_known() -> None:
    known = {int(kind) for kind in GGMLQuantizationType}
    assert {row.name for number, row in TENSOR_TYPES.items() if number not in known} <= {"Q1_0", "Q2_0"}
    assert (tensor_type(42).name, tensor_type(42).block, tensor_type(42).size) == ("Q2_0", 64, 18)


def test_words_and_float_fields_lie_within_the_block() -> None:
    for row in TENSOR_TYPES.values():
        for words in row.words or ():
            assert words.offset + words.width * words.n <= row.size, row.name
        for field in row.floats:
            assert field.offset + field.width <= row.size, row.name


def test_every_scale_of_a_type_with_a_settled_byte_order_is_swapped() -> None:
    for row in TENSOR_TYPES.values():
        if row.words is not None:
            swapped = {(words.offset, words.width) for words in row.words}
            wide = {(field.offset, field.width) for field in row.floats if field.width > 1}
            assert wide <= swapped, row.name


def test_an_unknown_type_is_named_by_its_number() -> None:
    assert tensor_type(99).name == "type_99"
    assert not tensor_type(99).known
    assert tensor_type(4).name == "Q4_2"
    assert not tensor_type(4).known


def test_value_types_are_those_of_the_format() -> None:
    assert {(kind.name, int(kind)) for kind in ValueType} == {(kind.name, int(kind)) for kind in GGUFValueType}
    assert VALUE_TYPE_NAMES["f32"] is ValueType.FLOAT32
    assert [ValueType.UINT8.size, ValueType.INT16.size, ValueType.FLOAT32.size, ValueType.INT64.size] == [1, 2, 4, 8]
    assert ValueType.BOOL.size == 1
    assert not ValueType.BOOL.is_integer
    assert ValueType.INT64.is_integer
    assert not ValueType.STRING.is_integer


def test_pad() -> None:
    assert [pad(n, 32) for n in (0, 1, 32, 33)] == [0, 32, 32, 64]
