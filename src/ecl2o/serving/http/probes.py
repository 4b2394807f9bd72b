"""The routes for those who run the service: is it alive, may it be asked, what does it measure."""

from fastapi import APIRouter, Response

from ecl2o.serving.durable.service import Service
from ecl2o.serving.http import models
from ecl2o.serving.http.measures import Measures
from ecl2o.serving.http.models import refusals


def make_probes(service: Service, measures: Measures) -> APIRouter:
    """Health, readiness and Prometheus' figures."""
    probes = APIRouter(tags=["probes"])

    @probes.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        return {"status": "alive"}

    @probes.get("/readyz", response_model=models.Ready, responses={503: {"model": models.Ready}})
    def readyz(response: Response):
        """The service may be asked; 503 with the reasons if not."""
        reasons = service.unready()
        response.status_code = 503 if reasons else 200
        return {"ready": not reasons, "reasons": reasons}

    @probes.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **refusals()},
    )
    def metrics():
        """For Prometheus."""
        return Response(measures.text(), media_type="text/plain; version=0.0.4")

    return probes
