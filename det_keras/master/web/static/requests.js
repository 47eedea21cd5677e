// Requests to the master. For a request without an answer browsers know no reason but "Failed to fetch".

// As `fetch`; `next` is a sentence that says what happens next if the master cannot be reached.
export async function request(address, options, next) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`The master cannot be reached. ${next}`);
  }
}

// Returns why the master refused: the REST API and the addresses of pages say it in different places.
export async function reasonOf(answer) {
  try {
    const { error, message } = await answer.json();
    return error?.error ?? message;
  } catch {
    return `The master refused: ${answer.status} ${answer.statusText}.`;
  }
}
