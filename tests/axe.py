"""Accessibility checks by axe-core."""

from axe_core_python.base import AXE_SCRIPT

_RUN = """
const done = arguments[arguments.length - 1];
axe.run(arguments[0] || document, {resultTypes: ["violations"]}).then(done, (error) => done({error: String(error)}));
"""
SERIOUS = ("serious", "critical")


def find_violations(driver, selector: str | None = None) -> list[str]:
    """Return the serious and critical violations of the page that the selenium driver shows, below `selector` if given."""
    driver.execute_script(AXE_SCRIPT)
    found = driver.execute_async_script(_RUN, selector)
    assert "violations" in found, found
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}; {len(rule['nodes'])} times, first {rule['nodes'][0]['target']}"
        for rule in found["violations"]
        if rule["impact"] in SERIOUS
    ]
