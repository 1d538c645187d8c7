from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from minka import AsyncLLM, SamplingParams
from minka.errors import ContextSizeError, UnavailableError
from tests.fakes import WAIT, FakeBackend

GREEDY = SamplingParams(temperature=0, max_tokens=8)
HI = {"role": "user", "content": "hi"}


@pytest.fixture
def llm(loads: None) -> AsyncLLM:
    return AsyncLLM("fake.gguf")


def test_a_text_comes_as_it_is_generated(llm: AsyncLLM, backend: FakeBackend) -> None:
    async def main() -> None:
        backend.gate.let(3)  # the prompt, and two tokens after the first
        async with llm:
            outputs = []
            async for output in llm.generate("once", GREEDY):
                outputs.append(output)
                if len(output.outputs[0].token_ids) == 3:
                    backend.gate.open()
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        assert lengths == sorted(set(lengths))
        assert (3 in lengths, lengths[-1]) == (True, 8)
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
        last = outputs[-1].outputs[0]
        assert "".join(output.outputs[0].delta for output in outputs) == last.text
        assert (last.finish_reason, len(last.text)) == ("length", 8)

    asyncio.run(main())


def test_calls_run_together_and_answer_chats(llm: AsyncLLM, backend: FakeBackend) -> None:
    async def answer(text: str) -> str:
        last = [output async for output in llm.chat([{"role": "user", "content": text}], GREEDY)][-1]
        assert last.outputs[0].message == {"role": "assistant", "content": last.text}
        return last.text

    async def main() -> None:
        async with llm:
            alone = [await answer(str(n)) for n in range(4)]
            backend.gate.close()  # until all of them wait for the engine
            together = [asyncio.create_task(answer(str(n))) for n in range(4)]
            async with asyncio.timeout(WAIT):
                while llm._runtime.engine.n_open < 4:
                    await asyncio.sleep(0.001)
            backend.gate.open()
            assert [await each for each in together] == alone

    asyncio.run(main())
    assert max(len(batch) for batch in backend.decodes) > 1


@pytest.mark.parametrize("how", ["break", "cancel"])
def test_leaving_cancels_the_work(llm: AsyncLLM, how: str) -> None:
    endless = SamplingParams(temperature=0, ignore_eos=True)

    async def leave() -> None:
        async for _ in llm.generate("once", endless):
            if how == "break":
                break
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    async def main() -> None:
        async with llm:
            task = asyncio.create_task(leave())
            await asyncio.wait([task])
            assert task.cancelled() == (how == "cancel")
            await asyncio.sleep(0)  # the loop closes a generator that was left
            view = await asyncio.wait_for(asyncio.wrap_future(llm._runtime.engine.view()), WAIT)
            assert not any(slot.busy for slot in view.slots)

    asyncio.run(main())


def test_errors_are_raised_where_the_text_is_awaited(llm: AsyncLLM) -> None:
    async def main() -> None:
        with pytest.raises(ContextSizeError):
            await anext(llm.generate("x" * 600))
        await asyncio.to_thread(llm.close)
        with pytest.raises(UnavailableError):
            await anext(llm.generate("a"))

    asyncio.run(main())


def test_a_model_serves_one_loop_after_another(llm: AsyncLLM) -> None:
    async def once() -> str:
        return [output async for output in llm.generate("a", GREEDY)][-1].text

    assert asyncio.run(once()) == asyncio.run(once())
    llm.close()


def test_several_threads_have_loops_of_their_own(llm: AsyncLLM) -> None:
    async def some(name: str) -> list[str]:
        async def one(n: int) -> str:
            return [output async for output in llm.generate(f"{name} {n}", GREEDY)][-1].text

        return [text for n in range(0, 12, 3) for text in await asyncio.gather(*map(one, range(n, n + 3)))]

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda name: asyncio.run(some(name)), "abcd", timeout=WAIT))
    assert together == [asyncio.run(some(name)) for name in "abcd"]
    llm.close()


def test_a_fork_closes_nothing_of_its_parent(
    llm: AsyncLLM, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        llm.close()
    assert not backend.closed
    llm.close()
    assert backend.closed
